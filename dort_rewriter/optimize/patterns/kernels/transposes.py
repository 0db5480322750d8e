"""Transposes that our kernels do while they convert, instead of one more copy.

NOTE: only those that were measured to be faster than the nodes they stand for: onnxruntime's own
transposes are fast where one axis moves, and where there are a few numbers in a row, ours are not.
"""

from __future__ import annotations

import onnx_ir as ir

from dort_rewriter.kernels.operators import OWN_DOMAIN, TORCH_KERNELS, own_roots
from dort_rewriter.optimize.patterns.base import Match, Refusal, Rule
from dort_rewriter.optimize.view import GraphView, operator

_TYPES = {
    (ir.DataType.FLOAT16, ir.DataType.FLOAT): "TransposeToFloat",
    (ir.DataType.FLOAT, ir.DataType.FLOAT16): "TransposeToFloat16",
    (ir.DataType.BFLOAT16, ir.DataType.FLOAT): "TransposeToFloat",
    (ir.DataType.FLOAT, ir.DataType.BFLOAT16): "TransposeToBfloat16",
}
_ANY_ORDER = frozenset(own_roots(TORCH_KERNELS))
"""Kernels of torch, which read tensors in any order of the axes."""
_ROW, _BLOCK = 32, 8
"""How many numbers have to be neighbours, in rows that are copied and on both axes of a block."""


class TransposeCast(Rule):
    """``Cast(Transpose(x, perm)) -> TransposeToFloat<perm>(x)``   from float16 or bfloat16 to
    float32; to ``TransposeToFloat16`` or ``TransposeToBfloat16`` the other way; and
    ``Transpose(Cast(x), perm)``."""

    roots = ("Cast", "Transpose")
    reads = ("Cast", "Transpose")

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        other = "Transpose" if node.op_type == "Cast" else "Cast"
        between = node.inputs[0]
        before = graph.producer(between, other)
        if before is None or between is None or not graph.used_once(between):
            return None
        x, y = before.inputs[0], node.outputs[0]
        if x is None or x.dtype is None or y.dtype is None:
            return None
        name = _TYPES.get((x.dtype, y.dtype))
        perm = graph.order(node if other == "Cast" else before)
        dims = graph.dims(x)
        if name is None or perm is None or dims is None:
            return None
        if other == "Cast" and _is_read_in_any_order(y, graph):
            return None  # the rounded numbers are read as they lie
        if not _is_fast(perm, dims):
            return Refusal("onnxruntime's transpose is faster", (perm, dims))
        if not graph.runs(name, [x], outputs=[y], domain=OWN_DOMAIN, perm=perm):
            return Refusal("no kernel", (x.dtype, y.dtype))
        return Match([y], lambda op: op.call(name, x, domain=OWN_DOMAIN, perm=perm))


def _is_read_in_any_order(value: ir.Value, graph: GraphView) -> bool:
    readers = graph.consumers(value)
    if not readers or value.is_graph_output():
        return False
    return all(operator(n) in _ANY_ORDER for n in readers)


def _is_fast(perm: list[int], dims: tuple[int | ir.SymbolicDim, ...]) -> bool:
    """Whether rows or blocks are long; a size known at run time is taken to be."""
    sizes = [d if isinstance(d, int) else _ROW for d in dims]
    if not perm or sorted(perm) == perm:
        return False
    if perm[-1] == len(perm) - 1:
        return sizes[-1] >= _ROW
    return sizes[-1] >= _BLOCK and sizes[perm[-1]] >= _BLOCK
