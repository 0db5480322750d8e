"""Reductions, and whether they keep the axes they reduce."""

from __future__ import annotations

import onnx_ir as ir

from dort_rewriter.graph.shapes import same
from dort_rewriter.optimize.patterns.base import Match, Refusal, Rule
from dort_rewriter.optimize.view import Dim, GraphView

__all__ = ["ReduceReshape"]

_REDUCTIONS = tuple(
    f"Reduce{kind}" for kind in "L1 L2 LogSum LogSumExp Max Mean Min Prod Sum SumSquare".split()
)


class ReduceReshape(Rule):
    """``Squeeze(ReduceSum(x, keepdims=1)) -> ReduceSum(x, keepdims=0)``   and the reverse.

    Reshape and Unsqueeze count when they do the same.
    """

    roots = ("Squeeze", "Reshape", "Unsqueeze")
    reads = _REDUCTIONS

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        """What to replace."""
        value = node.inputs[0]
        reduction = graph.producer(value, *_REDUCTIONS)
        if reduction is None or value is None or (x := reduction.inputs[0]) is None:
            return None
        dims, result = graph.dims(x), graph.dims(node.outputs[0])
        if dims is None or result is None or (axes := graph.axes(reduction, len(dims))) is None:
            return None
        keep = 1 - graph.attribute(reduction, "keepdims", 1)
        if not axes and graph.attribute(reduction, "noop_with_empty_axes", 0):
            return None
        if not _is_reduced(dims, axes or list(range(len(dims))), keep, result):
            return None
        if not graph.used_once(value):
            return Refusal("the reduction is needed as it is", value.name)
        inputs = [v for v in reduction.inputs if v is not None]
        attributes = {k: a.value for k, a in reduction.attributes.items()} | {"keepdims": keep}
        name = reduction.op_type
        return Match([node.outputs[0]], lambda op: op.call(name, *inputs, **attributes))


def _is_reduced(
    dims: tuple[Dim, ...], axes: list[int], keep: int, result: tuple[Dim, ...]
) -> bool:
    """Whether a shape is that of a reduction which keeps its axes, or does not."""
    wanted = [1 if i in axes else d for i, d in enumerate(dims) if keep or i not in axes]
    return len(wanted) == len(result) and all(map(same, wanted, result))
