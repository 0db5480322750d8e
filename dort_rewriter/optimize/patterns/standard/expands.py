"""Expand before operators that broadcast by themselves."""

from __future__ import annotations

import onnx_ir as ir

from dort_rewriter.graph.shapes import broadcast, same
from dort_rewriter.graph.writer import Writer
from dort_rewriter.optimize.patterns.base import Match, Refusal, Rule
from dort_rewriter.optimize.patterns.elementwise import BROADCASTING, UNARY
from dort_rewriter.optimize.patterns.trees import PatternOps, Tree, TreeRule
from dort_rewriter.optimize.view import Dim, GraphView

__all__ = ["ExpandBroadcast", "ExpandExpand", "ExpandSwap"]


class ExpandBroadcast(Rule):
    """``Mul(Expand(x), y) -> Mul(x, y)``   when ``y`` makes the result as large by itself.

    Any operator that broadcasts, any of its inputs.
    """

    roots = BROADCASTING
    reads = ("Expand",)
    lowers = "elementwise operators that read an Expand"

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        """What to replace."""
        sources = [_before_expand(v, graph) for v in node.inputs]
        if all(s is v for s, v in zip(sources, node.inputs, strict=True)):
            return None
        if not _is_shape(node.outputs[0], sources, graph):
            sources = _drop_one(node, sources, graph)
        if not sources:
            return Refusal("the result would be smaller", str(node.outputs[0].shape))
        attributes = {k: a.value for k, a in node.attributes.items()}
        name = node.op_type
        return Match([node.outputs[0]], lambda op: op.call(name, *sources, **attributes))


class ExpandSwap(Rule):
    """``Exp(Expand(x)) -> Expand(Exp(x))``   and ``Mul(Expand(x), y) -> Expand(Mul(x, y))``,
    when ``y`` makes the product no larger than ``x``."""

    roots = (*UNARY, *BROADCASTING)
    reads = ("Expand",)
    lowers = "elements computed"

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        """What to replace."""
        places = [i for i, v in enumerate(node.inputs) if graph.producer(v, "Expand") is not None]
        if len(places) != 1:
            return None
        (at,) = places
        value = node.inputs[at]
        expand = graph.producer(value)
        if value is None or expand is None or (x := expand.inputs[0]) is None:
            return None
        target, result = expand.inputs[1], node.outputs[0]
        if not graph.used_once(value):
            return Refusal("the expanded value is needed", value.name)
        inputs = [*node.inputs[:at], x, *node.inputs[at + 1 :]]
        if not graph.same_shape(value, result) or not _is_shape(x, inputs, graph):
            return Refusal("another input makes the result larger", str(result.shape))
        attributes = {k: a.value for k, a in node.attributes.items()}
        name = node.op_type
        return Match([result], lambda op: op.Expand(op.call(name, *inputs, **attributes), target))


class ExpandExpand(TreeRule):
    """``Expand(Expand(x, s), t) -> Expand(x, t)``   when ``t`` alone says the shape."""

    @staticmethod
    def pattern(op: PatternOps, x: ir.Value, s: ir.Value, t: ir.Value) -> Tree:
        """Two of them."""
        return op.Expand(op.named("first", op.Expand(x, s)), t)

    @staticmethod
    def check(
        graph: GraphView, x: ir.Value, t: ir.Value, first: ir.Node, result: ir.Value
    ) -> Refusal | None:
        """The second shape is that of the result."""
        dims, sizes = graph.dims(x), graph.sizes(t)
        if dims is None or sizes is None or not _equal(broadcast([dims, sizes]), result):
            return Refusal("the first shape is needed", first.outputs[0].name)
        return None

    @staticmethod
    def replacement(op: Writer, x: ir.Value, t: ir.Value) -> ir.Value:
        """The second one."""
        result: ir.Value = op.Expand(x, t)
        return result


def _is_shape(value: ir.Value, inputs: list[ir.Value | None], graph: GraphView) -> bool:
    """Whether some inputs broadcast to the shape of a value."""
    shapes = [graph.dims(v) for v in inputs]
    known = [s for s in shapes if s is not None]
    return len(known) == len(shapes) and _equal(broadcast(known), value)


def _equal(dims: tuple[Dim, ...], value: ir.Value) -> bool:
    wanted = value.shape
    return wanted is not None and len(wanted) == len(dims) and all(map(same, dims, wanted))


def _before_expand(value: ir.Value | None, graph: GraphView) -> ir.Value | None:
    expand = graph.producer(value, "Expand")
    return value if expand is None else expand.inputs[0]


def _drop_one(
    node: ir.Node, sources: list[ir.Value | None], graph: GraphView
) -> list[ir.Value | None]:
    """The inputs of a node with one Expand left out; [] when each is needed."""
    for i, source in enumerate(sources):
        inputs = [*node.inputs[:i], source, *node.inputs[i + 1 :]]
        if source is not node.inputs[i] and _is_shape(node.outputs[0], inputs, graph):
            return inputs
    return []
