"""Activations that onnxruntime has as one kernel, and does not find by itself."""

from __future__ import annotations

import onnx_ir as ir

from dort_rewriter.optimize.patterns.base import Match, Refusal, Rule
from dort_rewriter.optimize.patterns.recognize.gelu import Gelu, find_gelu
from dort_rewriter.optimize.view import GraphView

__all__ = ["FastGelu", "GeluErf"]


def _match(node: ir.Node, operator: str, graph: GraphView) -> Match | Refusal | None:
    found = find_gelu(node, graph)
    if not isinstance(found, Gelu):
        return found
    x, result = found.x, found.result
    if operator == "FastGelu" and x.shape is not None and len(x.shape) == 0:
        return Refusal("the kernel wants a dimension", x.name)
    if operator == "FastGelu" and x.dtype == ir.DataType.DOUBLE:
        return Refusal("the kernel has constants of float32", x.name)
    if not graph.runs(operator, [x]):
        return Refusal("no kernel for the type", x.dtype)
    return Match([result], lambda op: op.call(operator, x, domain="com.microsoft"))


class GeluErf(Rule):
    """``x * (1 + Erf(x / sqrt(2))) / 2 -> Gelu(x)``   when nothing else reads the Erf."""

    roots = ("Erf",)

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        """What to replace."""
        return _match(node, "Gelu", graph)


class FastGelu(Rule):
    """``x * (1 + Tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))) / 2 -> FastGelu(x)``."""

    roots = ("Tanh",)

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        """What to replace."""
        return _match(node, "FastGelu", graph)
