"""Gradients that the training build of onnxruntime has as one kernel.

NOTE: of 1.19, SoftmaxGrad takes nine tenths to three quarters of the time of its parts on the CPU.
GeluGrad and LayerNormalizationGrad are faster for some sizes and slower for others: not used.
"""

from __future__ import annotations

import onnx_ir as ir

from dort_rewriter.optimize.patterns.base import Match, Refusal, Rule
from dort_rewriter.optimize.patterns.recognize.arithmetic import factors
from dort_rewriter.optimize.view import GraphView

__all__ = ["SoftmaxGrad"]


class SoftmaxGrad(Rule):
    """``(g - ReduceSum(g * y)) * y -> SoftmaxGrad_13(g, y)``   over one axis."""

    roots = ("Mul",)

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        """What to replace."""
        for shifted, y in factors(node):
            difference = graph.producer(shifted, "Sub")
            if difference is None:
                continue
            gradient, total = difference.inputs
            reduction = graph.producer(total, "ReduceSum")
            if gradient is None or reduction is None:
                continue
            product = graph.producer(reduction.inputs[0], "Mul")
            if any(a is gradient and b is y for a, b in factors(product)):
                return _fuse(node, gradient, y, reduction, graph)
        return None


def _fuse(
    node: ir.Node, gradient: ir.Value, y: ir.Value, reduction: ir.Node, graph: GraphView
) -> Match | Refusal:
    axes = graph.axes(reduction, graph.rank(y))
    if axes is None or len(axes) != 1 or not graph.attribute(reduction, "keepdims", 1):
        return Refusal("not over one axis", axes)
    if not graph.same_shape(gradient, y):
        return Refusal("the gradient has another shape", str(gradient.shape))
    product = reduction.inputs[0]
    if product is None or product.is_graph_output() or len(graph.consumers(product)) > 1:
        return Refusal("others read the product", product.name if product else None)
    if not graph.runs("SoftmaxGrad_13", [gradient, y]):
        return Refusal("no kernel for the type", y.dtype)
    (axis,) = axes
    return Match(
        [node.outputs[0]],
        lambda op: op.call("SoftmaxGrad_13", gradient, y, domain="com.microsoft", axis=axis),
    )
