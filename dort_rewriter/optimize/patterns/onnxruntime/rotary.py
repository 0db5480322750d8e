"""Rotary embedding as one kernel."""

from __future__ import annotations

import onnx_ir as ir

from dort_rewriter.graph.writer import Writer
from dort_rewriter.optimize.patterns.base import Match, Refusal, Rule
from dort_rewriter.optimize.patterns.recognize.rotary import Rotary, find_rotary
from dort_rewriter.optimize.view import GraphView

__all__ = ["ContribRotaryEmbedding"]


class ContribRotaryEmbedding(Rule):
    """``x * cos + concat(-x[half:], x[:half]) * sin -> RotaryEmbedding(x, 0, cos, sin)``.

    The tables hold both halves alike, ``concat(f, f)``, for all batches and heads.
    """

    roots = ("Add",)
    reads = ("Mul", "Cast", "Concat")
    lowers = "elements of tables and of their products"

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        """What to replace."""
        found = find_rotary(node, graph)
        if not isinstance(found, Rotary):
            return found
        x, first = found.x, ir.Value(name="first", type=ir.TensorType(ir.DataType.INT64))
        if not graph.runs("RotaryEmbedding", [x, first, x, x]):
            return Refusal("no kernel that is faster for the type", x.dtype)

        def build(op: Writer) -> ir.Value:
            cos, sin = (
                op.Reshape(half(op), [-1, found.size // 2]) for half in (found.cos, found.sin)
            )
            result: ir.Value = op.call(
                "RotaryEmbedding", x, op.constant([0]), cos, sin, domain="com.microsoft"
            )
            return result

        return Match([node.outputs[0]], build)
