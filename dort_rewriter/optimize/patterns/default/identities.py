"""Nodes that return their input as it is, and neutral elements."""

from __future__ import annotations

import onnx_ir as ir

from dort_rewriter.optimize.patterns.base import Match, Rule
from dort_rewriter.optimize.view import GraphView

__all__ = ["Identity"]


class Identity(Rule):
    """``Identity(x) -> x``   unless the model returns its input under another name."""

    roots = ("Identity",)

    def match(self, node: ir.Node, graph: GraphView) -> Match | None:
        """Return what to replace."""
        (x,) = node.inputs
        if x is None:
            return None
        return Match([node.outputs[0]], lambda op: x)
