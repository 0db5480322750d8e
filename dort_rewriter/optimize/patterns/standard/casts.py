"""Chains of casts."""

from __future__ import annotations

import onnx_ir as ir

from dort_rewriter.dtypes import holds
from dort_rewriter.optimize.patterns.base import Match, Refusal, Rule
from dort_rewriter.optimize.view import GraphView

__all__ = ["CastCast", "CastOpCast"]


class CastCast(Rule):
    """``Cast(Cast(x)) -> Cast(x)``   when the type between holds every value of the first."""

    roots = ("Cast",)

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        """What to replace."""
        first = graph.producer(node.inputs[0], "Cast")
        if first is None or (x := first.inputs[0]) is None or x.dtype is None:
            return None
        between, last = node.inputs[0].dtype, node.outputs[0].dtype  # type: ignore[union-attr]
        if between is None or last is None:
            return None
        if not holds(between, x.dtype):
            return Refusal("the type between rounds", f"{x.dtype} -> {between}")
        return Match([node.outputs[0]], lambda op: op.cast(x, last))


_MOVES = ("Expand", "Flatten", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze")


class CastOpCast(Rule):
    """``Cast(Transpose(Cast(x))) -> Transpose(x)``   when the type of ``x`` comes back.

    For any operator that moves elements, when the type between holds every value of the first.
    """

    roots = ("Cast",)

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        """What to replace."""
        moved = node.inputs[0]
        move = graph.producer(moved, *_MOVES)
        first = None if move is None else graph.producer(move.inputs[0], "Cast")
        if move is None or first is None or moved is None or (x := first.inputs[0]) is None:
            return None
        if x.dtype is None or x.dtype != node.outputs[0].dtype:
            return None
        between = moved.dtype
        if between is None or not holds(between, x.dtype):
            return Refusal("the type between rounds", f"{x.dtype} -> {between}")
        if not graph.used_once(moved):
            return Refusal("the result of the type between is needed", moved.name)
        rest = move.inputs[1:]
        attributes = {k: a.value for k, a in move.attributes.items()}
        name = move.op_type
        return Match([node.outputs[0]], lambda op: op.call(name, x, *rest, **attributes))
