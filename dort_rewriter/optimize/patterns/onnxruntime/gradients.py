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
    """``g * y - y * ReduceSum(g * y) -> SoftmaxGrad_13(g, y)``   over one axis."""

    roots = ("Sub",)

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        """What to replace."""
        product, scaled = node.inputs
        first, second = graph.producer(product, "Mul"), graph.producer(scaled, "Mul")
        if first is None or second is None or product is None:
            return None
        for y, total in factors(second):
            reduction = graph.producer(total, "ReduceSum")
            if reduction is None or reduction.inputs[0] is not product:
                continue
            for gradient, other in factors(first):
                if other is y:
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
    if product is None or product.is_graph_output() or len(graph.consumers(product)) > 2:
        return Refusal("others read the product", product.name if product else None)
    if not graph.runs("SoftmaxGrad_13", [gradient, y]):
        return Refusal("no kernel for the type", y.dtype)
    (axis,) = axes
    return Match(
        [node.outputs[0]],
        lambda op: op.call("SoftmaxGrad_13", gradient, y, domain="com.microsoft", axis=axis),
    )
