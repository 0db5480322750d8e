"""Activations that newer opsets have as one operator."""

from __future__ import annotations

import onnx_ir as ir

from dort_rewriter.optimize.patterns.base import Match, Refusal, Rule
from dort_rewriter.optimize.patterns.recognize import gelu
from dort_rewriter.optimize.view import GraphView

__all__ = ["Gelu"]


class Gelu(Rule):
    """``x * (1 + gate) / 2 -> Gelu(x)``   when the opset has it, 20 or more.

    The gate is ``Erf(x / sqrt(2))``, or ``Tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))``.
    """

    roots = ("Erf", "Tanh")

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        """What to replace."""
        found = gelu.find_gelu(node, graph)
        if not isinstance(found, gelu.Gelu):
            return found
        if graph.opset < 20:
            return Refusal("the opset has no Gelu", graph.opset)
        x = found.x
        if not graph.runs("Gelu", [x], domain=""):
            return Refusal("no kernel for the type", x.dtype)
        return Match([found.result], lambda op: op.Gelu(x, approximate=found.approximate))
