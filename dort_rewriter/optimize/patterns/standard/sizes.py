"""Arithmetic on sizes, which graphs with symbolic dimensions are full of."""

from __future__ import annotations

import onnx_ir as ir

from dort_rewriter.graph.shapes import same
from dort_rewriter.optimize.patterns.base import Match, Refusal, Rule
from dort_rewriter.optimize.patterns.standard.views import reshape_target
from dort_rewriter.optimize.view import GraphView

__all__ = ["ReshapeTarget", "ShapeOfInput", "StaticSizes"]


class StaticSizes(Rule):
    """``Shape(x)[1:2] -> 16``   when that is its size; any arithmetic on sizes likewise."""

    roots = tuple("Shape Concat Gather Slice Squeeze Unsqueeze Reshape Add Sub Mul Div".split())

    def match(self, node: ir.Node, graph: GraphView) -> Match | None:
        """What to replace."""
        result = node.outputs[0]
        if result.dtype != ir.DataType.INT64 or (rank := graph.rank(result)) not in (0, 1):
            return None
        sizes = graph.sizes(result)
        if sizes is None or any(not isinstance(d, int) for d in sizes):
            return None
        numbers = list(sizes) if rank else sizes[0]
        return Match([result], lambda op: op.constant(numbers, ir.DataType.INT64))


class ReshapeTarget(Rule):
    """``Reshape(x, Concat(Shape(x)[:1], 4)) -> Reshape(x, [0, 4])``   when symbols allow it."""

    roots = ("Reshape",)
    lowers = "shapes computed at run time"

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        """What to replace."""
        x, computed = node.inputs
        if x is None or computed is None or computed.const_value is not None:
            return None
        source, dims = graph.dims(x), graph.dims(node.outputs[0])
        if source is None or dims is None:
            return None
        if (target := reshape_target(source, dims)) is None:
            return Refusal("two sizes are not told by the input", str(dims))
        return Match([node.outputs[0]], lambda op: op.Reshape(x, target))


class ShapeOfInput(Rule):
    """``Shape(Exp(x)) -> Shape(x)``   for an input ``x`` of the model with the same sizes.

    What was computed need not be kept for its shape, and equal sizes become one node.
    """

    roots = ("Shape",)
    lowers = "Shapes of computed results"

    def match(self, node: ir.Node, graph: GraphView) -> Match | None:
        """What to replace."""
        value = node.inputs[0]
        wanted = graph.sizes(node.outputs[0])
        if value is None or value.is_graph_input() or not wanted:
            return None
        for given in graph.graph.inputs:
            dims = graph.dims(given) or ()
            for start in range(len(dims) - len(wanted) + 1):
                if all(map(same, dims[start : start + len(wanted)], wanted)):
                    return _shape(node, given, start, start + len(wanted), len(dims))
        return None


def _shape(node: ir.Node, given: ir.Value, start: int, end: int, rank: int) -> Match:
    part = {} if (start, end) == (0, rank) else {"start": start, "end": end}
    return Match([node.outputs[0]], lambda op: op.Shape(given, **part))
