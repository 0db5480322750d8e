"""Normalizations that newer opsets have as one operator."""

from __future__ import annotations

import onnx_ir as ir

from dort_rewriter.optimize.patterns.base import Match, Refusal, Rule
from dort_rewriter.optimize.patterns.recognize.norms import RmsNorm, find_rms_norm
from dort_rewriter.optimize.view import GraphView

__all__ = ["RMSNormalization"]


class RMSNormalization(Rule):
    """``Mul(weight, x * rstd) -> RMSNormalization(x, weight)``   from opset 23.

    ``rstd = 1 / sqrt(mean(x * x) + epsilon)`` over the last axis. NOTE: the operator has no second
    result: where a training graph saves ``rstd``, the rule of onnxruntime finds the norm. It
    computes in float32, too little for float64.
    """

    roots = ("Mul",)
    reads = ("Mul", "Div", "Cast")

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        """What to replace."""
        if graph.opset < 23:
            return None
        norm = find_rms_norm(node, graph)
        if not isinstance(norm, RmsNorm):
            return norm
        x, weight = norm.x, norm.weight
        if len(norm.replaces) > 1:
            return Refusal("others read the deviation", norm.replaces[1].name)
        if x.dtype == ir.DataType.DOUBLE:
            return Refusal("it would be computed in float32", x.dtype)
        if not graph.runs("RMSNormalization", [x, weight], domain=""):
            return Refusal("no kernel for the type", x.dtype)
        epsilon = norm.epsilon
        return Match(
            norm.replaces, lambda op: op.RMSNormalization(x, weight, axis=-1, epsilon=epsilon)
        )
