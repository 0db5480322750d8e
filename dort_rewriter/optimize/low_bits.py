"""Weights of products in 8 or 4 bits: by blocks of a column, each with a scale of its own.

ONNX Runtime multiplies by them without making them wide first (``MatMulNBits``). A product of few
rows is bound by the memory that its weight takes, which is a quarter or an eighth.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from dort_rewriter.optimize.view import take_place

BLOCK = 32
"""Numbers of a column that share a scale."""

_INTEGER_PRODUCTS = 4
"""The ``accuracy_level`` at which rows are rounded to 8 bits, by blocks as well: one by 512 x 512
takes 13 us, and 300 us when weights are widened to float32 (8 bits, onnxruntime 1.31)."""

_FEWEST = 2**14
"""Numbers of a weight that is worth it."""

ERROR = "error of the weight"
"""Where a node says how far its weight is from what it was."""

_D = ir.DataType


@dataclass(frozen=True)
class _Packed:
    """A weight that was rounded."""

    numbers: ir.Value
    scales: ir.Value
    shape: tuple[int, ...]
    error: float
    """The length of the difference, of that of the weight."""


@dataclass(frozen=True)
class _Product:
    """A product by a constant matrix."""

    rows: ir.Value
    weight: ir.Value
    transposed: bool
    """Whether the weight is stored as ``[out, in]``."""
    factor: float
    added: ir.Value | None


def lower_weights(model: ir.Model, bits: int) -> None:
    """Round the constant float32 matrices that products read.

    What else reads a weight (the table of an embedding) goes on to read it as it was.
    """
    graph = model.graph
    packed: dict[tuple[int, bool, float], _Packed] = {}
    for node in list(graph):
        product = _read(node)
        if product is None:
            continue
        key = (id(product.weight), product.transposed, product.factor)
        if key not in packed:
            packed[key] = _store(graph, product, bits)
        _replace(graph, node, product, packed[key], bits)
    if packed:
        graph.opset_imports.setdefault("com.microsoft", 1)
        RemoveUnusedNodesPass()(model)  # the weights, and what transposed them


def pack(weight: Any, bits: int) -> tuple[Any, Any, Any]:
    """A matrix ``[in, out]`` for ``MatMulNBits``: numbers, scales, and what they stand for.

    The number of largest size of each block is exact.
    """
    inner, outer = weight.shape
    blocks = -(-inner // BLOCK)
    padded = np.zeros((outer, blocks * BLOCK), np.float32)
    padded[:, :inner] = weight.T
    parts = padded.reshape(outer, blocks, BLOCK)
    middle = 2 ** (bits - 1)
    places = np.abs(parts).argmax(-1)[..., None]
    scales = np.take_along_axis(parts, places, -1) / np.float32(-middle)
    inverse = np.divide(1, scales, out=np.zeros_like(scales), where=scales != 0)
    numbers = np.clip(np.rint(parts * inverse) + middle, 0, 2 * middle - 1).astype(np.uint8)
    exact = ((numbers.astype(np.float32) - middle) * scales).reshape(outer, -1)[:, :inner].T
    if bits == 4:
        numbers = numbers[..., 0::2] | (numbers[..., 1::2] << 4)
    return np.ascontiguousarray(numbers), scales.reshape(-1), exact


def _read(node: ir.Node) -> _Product | None:
    """The product that a node is, None if it is no product by a constant matrix."""
    known = (("", "MatMul"), ("", "Gemm"), ("com.microsoft", "FusedMatMul"))
    if (node.domain, node.op_type) not in known or len(node.inputs) < 2:
        return None
    rows, weight = node.inputs[0], node.inputs[1]
    if rows is None or weight is None or rows.dtype != _D.FLOAT:
        return None
    settings: Mapping[str, Any] = {n: a.value for n, a in node.attributes.items()}
    if any(settings.get(n) for n in ("transA", "transBatchA", "transBatchB")):
        return None
    added = node.inputs[2] if len(node.inputs) > 2 else None
    if added is not None and settings.get("beta", 1.0) != 1.0:
        return None
    transposed = bool(settings.get("transB", 0))
    maker = weight.producer()
    if maker is not None and (maker.domain, maker.op_type) == ("", "Transpose"):
        order = maker.attributes.get("perm")
        if (order is not None and list(order.value) != [1, 0]) or maker.inputs[0] is None:
            return None
        weight, transposed = maker.inputs[0], not transposed
    constant = weight.const_value
    if constant is None or constant.dtype != _D.FLOAT or len(constant.shape) != 2:
        return None
    if constant.size < _FEWEST:
        return None
    return _Product(rows, weight, transposed, float(settings.get("alpha", 1.0)), added)


def _store(graph: ir.Graph, product: _Product, bits: int) -> _Packed:
    """Put a rounded weight into the model."""
    assert product.weight.const_value is not None
    matrix = product.weight.const_value.numpy()
    matrix = matrix.T if product.transposed else matrix
    numbers, scales, exact = pack(matrix, bits)
    length = float(np.linalg.norm(matrix))
    error = float(np.linalg.norm(matrix - exact)) / length if length else 0.0
    made = []
    for ending, array in (("numbers", numbers), ("scales", scales * np.float32(product.factor))):
        label = f"{product.weight.name}.{ending}"
        while label in graph.initializers:
            label += "_"
        value = ir.Value(
            name=label,
            shape=ir.Shape(array.shape),
            type=ir.TensorType(ir.DataType.from_numpy(array.dtype)),
            const_value=ir.Tensor(array, name=label),
        )
        graph.register_initializer(value)
        made.append(value)
    return _Packed(made[0], made[1], tuple(matrix.shape), error)


def _replace(
    graph: ir.Graph, node: ir.Node, product: _Product, weight: _Packed, bits: int
) -> None:
    """Multiply by the rounded weight; what was added is added behind."""
    inner, outer = weight.shape
    settings = {"K": inner, "N": outer, "bits": bits, "block_size": BLOCK}
    made = ir.node(
        "MatMulNBits",
        [product.rows, weight.numbers, weight.scales],
        {**settings, "accuracy_level": _INTEGER_PRODUCTS},
        domain="com.microsoft",
        metadata_props={**node.metadata_props, ERROR: f"{weight.error:.2e}"},
        name=node.name,
    )
    nodes = [made]
    if product.added is not None:
        made.outputs[0].type = node.outputs[0].type
        made.outputs[0].name = f"{node.outputs[0].name}_product"
        added = [made.outputs[0], product.added]
        name = f"{node.name}_sum" if node.name else None
        nodes.append(ir.node("Add", added, metadata_props=dict(node.metadata_props), name=name))
    graph.insert_before(node, nodes)
    take_place(node.outputs[0], nodes[-1].outputs[0])
    graph.remove(node, safe=True)
