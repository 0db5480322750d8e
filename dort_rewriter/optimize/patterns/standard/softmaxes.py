"""Softmax and its logarithm, written by hand."""

from __future__ import annotations

import onnx_ir as ir

from dort_rewriter.graph.writer import Writer
from dort_rewriter.optimize.patterns.base import Refusal
from dort_rewriter.optimize.patterns.trees import PatternOps, Tree, TreeRule
from dort_rewriter.optimize.view import GraphView

__all__ = ["LogSoftmax", "Softmax"]


class Softmax(TreeRule):
    """``e / ReduceSum(e) -> Softmax(x)``   when ``e`` is ``Exp(x - ReduceMax(x))``, over one
    axis."""

    @staticmethod
    def pattern(op: PatternOps, x: ir.Value) -> Tree:
        """The quotient, which reads the exponentials twice."""
        highest = op.named("highest", op.ReduceMax(x, ...))
        e = op.named("shared", op.Exp(op.Sub(x, highest)))
        return op.Div(e, op.named("total", op.ReduceSum(e, ...)))

    @staticmethod
    def check(
        graph: GraphView, x: ir.Value, highest: ir.Node, shared: ir.Node, total: ir.Node
    ) -> Refusal | bool | None:
        """It is over one axis, and nothing reads what is inside."""
        return _check("Softmax", graph, x, highest, shared, total)

    @staticmethod
    def replacement(op: Writer, x: ir.Value, total: ir.Node) -> ir.Value:
        """One node."""
        result: ir.Value = op.Softmax(x, axis=_axis(total, x))
        return result


class LogSoftmax(TreeRule):
    """``c - Log(ReduceSum(Exp(c))) -> LogSoftmax(x)``   when ``c`` is ``x - ReduceMax(x)``, over
    one axis."""

    @staticmethod
    def pattern(op: PatternOps, x: ir.Value) -> Tree:
        """The difference, which reads the centred numbers twice."""
        c = op.named("shared", op.Sub(x, op.named("highest", op.ReduceMax(x, ...))))
        return op.Sub(c, op.Log(op.named("total", op.ReduceSum(op.Exp(c), ...))))

    @staticmethod
    def check(
        graph: GraphView, x: ir.Value, highest: ir.Node, shared: ir.Node, total: ir.Node
    ) -> Refusal | bool | None:
        """The same; the kernel of float64 loses a NaN of its row."""
        if x.dtype == ir.DataType.DOUBLE:
            return False
        return _check("LogSoftmax", graph, x, highest, shared, total)

    @staticmethod
    def replacement(op: Writer, x: ir.Value, total: ir.Node) -> ir.Value:
        """One node."""
        result: ir.Value = op.LogSoftmax(x, axis=_axis(total, x))
        return result


def _check(
    name: str, graph: GraphView, x: ir.Value, highest: ir.Node, shared: ir.Node, total: ir.Node
) -> Refusal | bool | None:
    """Why a softmax is left as it is; ``shared`` is what it reads twice."""
    if graph.rank(x) is None:
        return False
    axes = [graph.axes(reduction, graph.rank(x)) for reduction in (total, highest)]
    if axes[0] is None or len(axes[0]) != 1 or axes[0] != axes[1]:
        return Refusal("not over one axis", str(axes))
    if not all(graph.attribute(reduction, "keepdims", 1) for reduction in (total, highest)):
        return False
    inside = shared.outputs[0]
    if inside.is_graph_output() or len(graph.consumers(inside)) > 2:
        return Refusal("others read what is inside", inside.name)
    if not graph.runs(name, [x], domain=""):
        return Refusal("no kernel for the type", x.dtype)
    return None


def _axis(reduction: ir.Node, x: ir.Value) -> int:
    """The only axis of a reduction of x."""
    assert x.shape is not None
    given = reduction.attributes.get("axes")
    if given is not None:
        (axis,) = given.as_ints()
    else:
        tensor = reduction.inputs[1]
        assert tensor is not None
        assert tensor.const_value is not None
        (axis,) = tensor.const_value.numpy().ravel().tolist()
    return int(axis) % len(x.shape)
