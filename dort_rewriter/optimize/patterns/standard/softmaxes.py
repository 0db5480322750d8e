"""Softmax and its logarithm, written by hand."""

from __future__ import annotations

import onnx_ir as ir

from dort_rewriter.optimize.patterns.base import Match, Refusal, Rule
from dort_rewriter.optimize.view import GraphView

__all__ = ["LogSoftmax", "Softmax"]


class Softmax(Rule):
    """``e / ReduceSum(e) -> Softmax(x)``   when ``e`` is ``Exp(x - ReduceMax(x))``, over one
    axis."""

    roots = ("Div",)

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        """What to replace."""
        e, total = node.inputs
        reduction, exponential = graph.producer(total, "ReduceSum"), graph.producer(e, "Exp")
        if reduction is None or exponential is None or reduction.inputs[0] is not e or e is None:
            return None
        return _fuse("Softmax", node, e, reduction, _centred(exponential, graph), graph)


class LogSoftmax(Rule):
    """``c - Log(ReduceSum(Exp(c))) -> LogSoftmax(x)``   when ``c`` is ``x - ReduceMax(x)``, over
    one axis."""

    roots = ("Sub",)

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        """What to replace."""
        c, logarithm = node.inputs
        log = graph.producer(logarithm, "Log")
        reduction = None if log is None else graph.producer(log.inputs[0], "ReduceSum")
        if reduction is None or c is None:
            return None
        if c.dtype == ir.DataType.DOUBLE:  # whose kernel loses a NaN of its row
            return None
        exponential = graph.producer(reduction.inputs[0], "Exp")
        if exponential is None or exponential.inputs[0] is not c:
            return None
        return _fuse("LogSoftmax", node, c, reduction, _centred(exponential, graph), graph)


def _centred(exponential: ir.Node, graph: GraphView) -> ir.Node | None:
    """The ReduceMax of x in ``Exp(x - ReduceMax(x))``."""
    difference = graph.producer(exponential.inputs[0], "Sub")
    if difference is None:
        return None
    highest = graph.producer(difference.inputs[1], "ReduceMax")
    return highest if highest is not None and highest.inputs[0] is difference.inputs[0] else None


def _fuse(
    name: str,
    node: ir.Node,
    shared: ir.Value,
    total: ir.Node,
    highest: ir.Node | None,
    graph: GraphView,
) -> Match | Refusal | None:
    """Replace a softmax; ``shared`` is what it reads twice."""
    x = None if highest is None else highest.inputs[0]
    rank = graph.rank(x)
    if highest is None or x is None or rank is None:
        return None
    axes = [graph.axes(reduction, rank) for reduction in (total, highest)]
    if axes[0] is None or len(axes[0]) != 1 or axes[0] != axes[1]:
        return Refusal("not over one axis", str(axes))
    if not all(graph.attribute(reduction, "keepdims", 1) for reduction in (total, highest)):
        return None
    if shared.is_graph_output() or len(graph.consumers(shared)) > 2:
        return Refusal("others read what is inside", shared.name)
    if not graph.runs(name, [x], domain=""):
        return Refusal("no kernel for the type", x.dtype)
    (axis,) = axes[0]
    return Match([node.outputs[0]], lambda op: op.call(name, x, axis=axis))
