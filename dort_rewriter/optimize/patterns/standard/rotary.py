"""Rotary embedding as the operator that newer opsets have."""

from __future__ import annotations

import onnx_ir as ir

from dort_rewriter.graph.writer import Writer
from dort_rewriter.optimize.patterns.base import Match, Refusal, Rule
from dort_rewriter.optimize.patterns.recognize.rotary import Rotary, find_rotary
from dort_rewriter.optimize.view import GraphView

__all__ = ["RotaryEmbedding"]


class RotaryEmbedding(Rule):
    """``x * cos + concat(-x[half:], x[:half]) * sin -> RotaryEmbedding(x, cos, sin)``   from
    opset 23.

    The tables hold both halves alike, ``concat(f, f)``; the operator wants them for each batch.
    """

    roots = ("Add",)
    reads = ("Mul", "Cast", "Concat")
    lowers = "elements of tables and of their products"

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        """What to replace."""
        if graph.opset < 23:
            return None
        found = find_rotary(node, graph)
        if not isinstance(found, Rotary):
            return found
        x = found.x
        if not graph.runs("RotaryEmbedding", [x, x, x], domain=""):
            return Refusal("no kernel for the type", x.dtype)
        batch = (graph.dims(x) or (None,))[0]

        def build(op: Writer) -> ir.Value:
            tables = [
                op.Reshape(half(op), [1, -1, found.size // 2]) for half in (found.cos, found.sin)
            ]
            if isinstance(batch, int):
                shape = op.constant([batch, 1, 1])
            else:
                shape = op.Concat(op.Shape(x, start=0, end=1), op.constant([1, 1]), axis=0)
            if batch != 1:
                tables = [op.Expand(table, shape) for table in tables]
            result: ir.Value = op.RotaryEmbedding(x, *tables)
            return result

        return Match([node.outputs[0]], build)
