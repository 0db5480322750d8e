"""Losses, and their gradients.

NOTE: the forward of a cross entropy stays what torch decomposes it into, a LogSoftmax and a
gather: SoftmaxCrossEntropyLoss takes 1.6 to 5 times as long in onnxruntime.
"""

from __future__ import annotations

from typing import NamedTuple

import onnx_ir as ir

from dort_rewriter.graph.shapes import same
from dort_rewriter.graph.writer import Writer
from dort_rewriter.optimize.patterns.base import Match, Refusal, Rule
from dort_rewriter.optimize.patterns.recognize.arithmetic import factors
from dort_rewriter.optimize.patterns.recognize.fillings import filling
from dort_rewriter.optimize.view import GraphView

__all__ = ["CrossEntropyScatter"]

_LIMIT = 4096
"""Elements above which a constant is not looked at."""


class _LogSoftmaxGrad(NamedTuple):
    """``gradient - exp(output) * sum(gradient)`` over one axis."""

    gradient: ir.Value
    output: ir.Value
    axis: int


class CrossEntropyScatter(Rule):
    """``h - exp(y) * sum(h) -> ScatterElements(exp(y) * w, target, -w, "add")``   when ``h`` is
    ``w * ScatterElements(0, target, -1)``: the gradient of one class taken of a LogSoftmax.

    The sum over the classes is ``-w``, the same bits: nothing but zeros is added to it. A gradient
    that the exporter wrote with a kernel of ours becomes one kernel in its set instead.
    """

    roots = ("Sub",)
    reads = ("Mul",)

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        """What to replace."""
        found = _of_parts(node, graph)
        product = None if found is None else graph.producer(found.gradient, "Mul")
        if found is None or product is None:
            return None
        for taken, weight in factors(product):
            scatter = graph.producer(taken, "ScatterElements")
            if scatter is not None:
                return _rewrite(node, found, scatter, weight, graph)
        return None


def _of_parts(node: ir.Node, graph: GraphView) -> _LogSoftmaxGrad | None:
    gradient, product = node.inputs[0], graph.producer(node.inputs[1], "Mul")
    if gradient is None or product is None:
        return None
    for probabilities, total in factors(product):
        exponential = graph.producer(probabilities, "Exp")
        reduction = graph.producer(total, "ReduceSum")
        if exponential is None or reduction is None or reduction.inputs[0] is not gradient:
            continue
        output = exponential.inputs[0]
        axes = graph.axes(reduction, graph.rank(output))
        if output is None or axes is None or len(axes) != 1:
            return None
        if not graph.attribute(reduction, "keepdims", 1):
            return None
        return _LogSoftmaxGrad(gradient, output, axes[0])
    return None


def _rewrite(
    node: ir.Node, found: _LogSoftmaxGrad, scatter: ir.Node, weight: ir.Value, graph: GraphView
) -> Match | Refusal:
    output, axis, target = found.output, found.axis, scatter.inputs[1]
    zeros, ones = (filling(v, graph, _LIMIT) for v in (scatter.inputs[0], scatter.inputs[2]))
    if (zeros, ones) != (0, -1) or graph.attribute(scatter, "reduction", "none") != "none":
        return Refusal("something else than -1 into zeros", (zeros, ones))
    dims, indices = graph.dims(output), graph.dims(target)
    if target is None or dims is None or indices is None:
        return Refusal("an unknown shape", scatter.name)
    if graph.attribute(scatter, "axis", 0) % len(dims) != axis:
        return Refusal("another axis than that of the sum", axis)
    whole = (scatter.outputs[0], found.gradient, node.outputs[0])
    if not all(graph.same_shape(output, v) for v in whole):
        return Refusal("the gradient has another shape", str(dims))
    wanted = (*dims[:axis], 1, *dims[axis + 1 :])
    if len(indices) != len(wanted) or not all(map(same, indices, wanted)):
        return Refusal("not one class of each sample", str(indices))
    if not graph.same_shape(weight, target):
        return Refusal("the weight is not one for each sample", str(weight.shape))
    gradient = found.gradient
    if gradient.is_graph_output() or len(graph.consumers(gradient)) > 2:
        return Refusal("others read the gradient", gradient.name)
    example = [[3 if i == axis else 2 for i in range(len(dims))]]
    example += [[1 if i == axis else 2 for i in range(len(dims))]] * 2
    runs = graph.runs(
        "ScatterElements",
        [output, target, output],
        domain="",
        shapes=example,
        axis=axis,
        reduction="add",
    )
    if not runs:
        return Refusal("no kernel for the type", output.dtype)

    def build(op: Writer) -> ir.Value:
        scaled = op.Mul(op.Exp(output), weight)
        result: ir.Value = op.ScatterElements(
            scaled, target, op.Neg(weight), axis=axis, reduction="add"
        )
        return result

    return Match([node.outputs[0]], build)
