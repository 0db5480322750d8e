"""Nodes that return their input as it is, and neutral elements."""

from __future__ import annotations

import onnx_ir as ir

from dort_rewriter.optimize.patterns.base import Match, Refusal, Rule
from dort_rewriter.optimize.view import GraphView

__all__ = ["Dropout", "Identity"]


class Identity(Rule):
    """``Identity(x) -> x``   unless the model returns its input under another name."""

    roots = ("Identity",)

    def match(self, node: ir.Node, graph: GraphView) -> Match | None:
        """What to replace."""
        (x,) = node.inputs
        if x is None:
            return None
        return Match([node.outputs[0]], lambda op: x)


class Dropout(Rule):
    """``Dropout(x) -> x``   in inference, when nobody reads the mask."""

    roots = ("Dropout",)

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        """What to replace."""
        x = node.inputs[0]
        training = node.inputs[2] if len(node.inputs) > 2 else None
        if x is None or (training is not None and graph.scalar(training) is not False):
            return None
        if any(v.uses() or v.is_graph_output() for v in node.outputs[1:]):
            return Refusal("the mask is read", node.name)
        return Match.of_known(node, x)
