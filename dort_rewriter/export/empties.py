"""Results without an element: constants, whatever the operator.

What is known of such a result is all there is to know. onnxruntime computes some of them wrongly,
and 1.19 does not survive others: the building of a session with ``Mul(Div(Sub(a, aT), d), u)`` of
empty matrices, which the gradient of ``svd`` has, and the run of a TopK.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import onnx_ir as ir
import torch
from onnx_ir.tensor_adapters import TorchTensor

from dort_rewriter.export.annotations import annotate
from dort_rewriter.graph.values import Value
from dort_rewriter.graph.writer import Writer

__all__ = ["empty_results"]

Results = Mapping[torch.fx.Node, Any]


def empty_results(
    writer: Writer, meta: Any, known: Results
) -> Value | Sequence[Value | None] | None:
    """Constants for a result, or a list of results, that holds no element; else None.

    The sizes that are known at run time are taken from the results `known` so far.
    """
    metas = meta if isinstance(meta, list | tuple) else [meta]
    if not metas or not all(_is_empty(m) for m in metas):
        return None
    found = [_constant(writer, m, known) for m in metas]
    if any(v is None for v in found):
        return None
    return found if isinstance(meta, list | tuple) else found[0]


def _is_empty(meta: Any) -> bool:
    if not isinstance(meta, torch.Tensor):
        return False
    return any(type(size) is int and size == 0 for size in meta.shape)


def _constant(writer: Writer, meta: torch.Tensor, known: Results) -> Value | None:
    pair = (2,) if meta.is_complex() else ()
    sizes = [_size(writer, size, known) for size in (*meta.shape, *pair)]
    dtype = meta.dtype.to_real()
    fixed = [s for s in sizes if isinstance(s, int)]
    if len(fixed) == len(sizes):
        tensor: ir.TensorProtocol = TorchTensor(torch.empty(fixed, dtype=dtype))
        return writer.tensor(tensor)
    if any(s is None for s in sizes):
        return None
    nothing = writer.tensor(TorchTensor(torch.empty((), dtype=dtype).zero_()))
    result = cast(Value, writer.call("Expand", nothing, sizes))
    annotate(result, meta)  # without it, a product does not see that it is one over nothing
    return result


def _size(writer: Writer, size: Any, known: Results) -> int | ir.Value | None:
    """A size as a number, or as a result that is equal to it."""
    if not isinstance(size, torch.SymInt):
        return int(size)
    wanted = size.node.expr
    for node, value in known.items():
        meta = node.meta.get("val")
        if not isinstance(value, Value):
            continue
        if isinstance(meta, torch.SymInt) and meta.node.expr == wanted:
            return value
        dims: Sequence[Any] = meta.shape if isinstance(meta, torch.Tensor) else ()
        for axis, dim in enumerate(dims):
            if isinstance(dim, torch.SymInt) and dim.node.expr == wanted:
                return writer.size(value, axis)
    return None
