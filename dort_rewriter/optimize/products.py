"""Nodes for kernels that multiply faster: by MKL, and attention by products of our own.

Large products of float32 are MKL's, or made of products of bfloat16 where the processor has
instructions for these; small ones of bfloat16 are MKL's, as are gradients of its attention.
Done last: rules know the operators of ONNX, ONNX Runtime and torch, and take some of them into
others.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

import onnx_ir as ir

from dort_rewriter.kernels.operators import (
    ATTENTION,
    ATTENTION_GRAD,
    MKL_ATTENTION_GRAD,
    MKL_PRODUCT,
    OWN_DOMAIN,
    TORCH_FLASH,
)

_PRODUCTS = frozenset({("", "MatMul"), ("", "Gemm"), ("com.microsoft", "FusedMatMul")})

_FEWEST = {"first turned": 1e6, "as they lie": 1.6e7, "second turned": 1.2e8, "packed": 3e8}
"""The multiplications from which MKL is faster, by how the factors are read.

Measured on a Xeon with AVX-512, one thread, onnxruntime 1.32. By MKL a product takes, of the time
of ONNX Runtime's kernel: gradients of weights, whose first factor is transposed, 0.86 (128 cubed),
0.77 to 0.87 (128 x 256 x 1024 and 128 x 768 x 768) and 0.7 (2048 x 1024 x 1024); gradients of what
a layer reads 1 (128 cubed), 0.88 and 0.72; layers 1, 1 and 0.76. A constant second factor, which
ONNX Runtime packs once, 1.03 (128 x 768 x 768), 0.95 (512 x 1024 x 1024) and 0.85. Batches of
small matrices gain nothing.
"""

_FEWEST_BY_PARTS, _ROWS, _ROWS_OF_PACKED = 1.6e7, 256, 64
"""The multiplications and rows from which the kernel multiplies by parts in bfloat16, by
``kernels/cpp/operators/mkl_products.h``: fewer rows are not worth laying out the second factor,
which a constant one is once."""

_USUAL = 64
"""What an unknown size is taken for."""


def multiply_by_mkl(model: ir.Model, terms: int = 0) -> int:
    """Change a model in place, and return how many products MKL computes now.

    ``terms`` says of how many products of bfloat16 the kernel may make a large one, if any.
    """
    done = 0
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        if not _is_product_of_floats(node):
            continue
        settings: dict[str, Any] = {n: a.value for n, a in node.attributes.items()}
        if settings.get("transBatchA", 0) or settings.get("transBatchB", 0):
            continue
        if _is_large(node, settings, by_parts=terms > 0):
            if terms:
                node.attributes["terms"] = ir.AttrInt64("terms", terms)
                node.attributes["constant"] = ir.AttrInt64("constant", int(_is_packed(node)))
            node.domain, node.op_type = OWN_DOMAIN, MKL_PRODUCT
            for name in ("transBatchA", "transBatchB"):
                node.attributes.pop(name, None)
            done += 1
    if done:
        model.graph.opset_imports.setdefault(OWN_DOMAIN, 1)
    return done


def multiply_small_by_mkl(model: ir.Model) -> int:
    """Let MKL compute small products of bfloat16 of torch's kernels, and return how many may be.

    Which are small the kernel decides, when it knows the sizes. Measured on a Xeon with AMX, of
    the time of torch's kernel: 0.3 (260 x 192 x 96), 0.5 (128 x 256 x 256), 0.55 (64 x 512 x 256),
    0.8 (96 x 260 x 768), 1.2 (256 x 256 x 512).
    """
    done = 0
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        of_torch = node.domain == OWN_DOMAIN and node.op_type in ("mm", "addmm")
        if of_torch and node.outputs[0].dtype is ir.DataType.BFLOAT16:
            node.attributes["small_by_mkl"] = ir.AttrInt64("small_by_mkl", 1)
            done += 1
    return done


def _is_product_of_floats(node: ir.Node) -> bool:
    """Whether a node multiplies float32, rows of any number of axes by one matrix."""
    if (node.domain, node.op_type) not in _PRODUCTS or None in node.inputs:
        return False
    ranks = [v.shape.rank() if v is not None and v.shape is not None else 0 for v in node.inputs]
    types = {v.dtype for v in node.inputs if v is not None}
    return types == {ir.DataType.FLOAT} and ranks[0] >= 2 and ranks[1] == 2


def _is_large(node: ir.Node, settings: Mapping[str, Any], *, by_parts: bool) -> bool:
    first, second = (_sizes(v) for v in node.inputs[:2])
    turns = bool(settings.get("transA", 0)), bool(settings.get("transB", 0))
    if turns[0] and len(first) > 2:
        return False  # batches
    columns = second[0] if turns[1] else second[1]
    count = math.prod(first) * columns
    rows = math.prod(first) // max(first[0] if turns[0] else first[-1], 1)
    fewest = _ROWS_OF_PACKED if _is_packed(node) else _ROWS
    if by_parts and rows >= fewest and count >= _FEWEST_BY_PARTS:
        return True
    if _is_packed(node):
        read = "packed"
    else:
        read = "first turned" if turns[0] else "second turned" if turns[1] else "as they lie"
    return count >= _FEWEST[read]


def _is_packed(node: ir.Node) -> bool:
    """Whether the second factor is a constant, which no input replaces."""
    second = node.inputs[1]
    return second is not None and second.const_value is not None and not second.is_graph_input()


def _sizes(value: ir.Value | None) -> list[int]:
    assert value is not None
    assert value.shape is not None
    return [d if isinstance(d, int) else _USUAL for d in value.shape]


def attend_by_own(
    model: ir.Model, names: Collection[str], *, torchs_bfloat16: bool, calls_mkl: bool
) -> int:
    """Change a model in place, and return how many attentions and gradients of attention, of the
    named operators of torch, it does not leave to torch's kernels.

    ``torchs_bfloat16`` says whether torch and MKL multiply bfloat16 by instructions for that: such
    attention is torch's, and its gradient MKL's where a model may call it.
    """
    done = 0
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        if node.domain != OWN_DOMAIN or node.op_type not in names:
            continue
        first = node.inputs[0]
        is_gradient = node.op_type != TORCH_FLASH
        if not (torchs_bfloat16 and first is not None and first.dtype is ir.DataType.BFLOAT16):
            node.op_type = ATTENTION_GRAD if is_gradient else ATTENTION
        elif is_gradient and calls_mkl:
            node.op_type = MKL_ATTENTION_GRAD
        else:
            continue
        done += 1
    return done
