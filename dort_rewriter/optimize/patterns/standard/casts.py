"""Chains of casts."""

from __future__ import annotations

import onnx_ir as ir

from dort_rewriter.dtypes import holds
from dort_rewriter.graph.writer import Writer
from dort_rewriter.optimize.patterns.base import Match, Refusal, Rule
from dort_rewriter.optimize.patterns.trees import PatternOps, Tree, TreeRule
from dort_rewriter.optimize.view import GraphView

__all__ = ["CastCast", "CastOpCast"]


class CastCast(TreeRule):
    """``Cast(Cast(x)) -> Cast(x)``   when the type between holds every value of the first."""

    @staticmethod
    def pattern(op: PatternOps, x: ir.Value) -> Tree:
        """Two casts."""
        return op.Cast(op.named("first", op.Cast(x)))

    @staticmethod
    def check(
        graph: GraphView, x: ir.Value, first: ir.Node, result: ir.Value
    ) -> Refusal | bool | None:
        """Types are known, and the one between rounds nothing."""
        between = first.outputs[0].dtype
        if x.dtype is None or between is None or result.dtype is None:
            return False
        if not holds(between, x.dtype):
            return Refusal("the type between rounds", f"{x.dtype} -> {between}")
        return None

    @staticmethod
    def replacement(op: Writer, x: ir.Value, result: ir.Value) -> ir.Value:
        """One cast."""
        assert result.dtype is not None
        return op.cast(x, result.dtype)


_MOVES = ("Expand", "Flatten", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze")


class CastOpCast(Rule):
    """``Cast(Transpose(Cast(x))) -> Transpose(x)``   when the type of ``x`` comes back.

    For any operator that moves elements, when the type between holds every value of the first.
    """

    roots = ("Cast",)
    reads = _MOVES

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
