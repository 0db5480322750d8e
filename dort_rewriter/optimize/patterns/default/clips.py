"""Bounds on numbers, one after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import onnx_ir as ir

from dort_rewriter.optimize.patterns.base import Match, Refusal, Rule
from dort_rewriter.optimize.view import GraphView

__all__ = ["ClipClip"]


class _Bounds(NamedTuple):
    source: ir.Value
    low: float | None
    high: float | None


class ClipClip(Rule):
    """``Clip(Clip(x, a, b), c, d) -> Clip(x, max(a, c), min(b, d))``   when the ranges meet.

    Also ``Relu(Relu(x)) -> Relu(x)``. NOTE: Relu and Clip are not mixed: what they make of a NaN
    is not the same everywhere.
    """

    roots = ("Clip", "Relu")

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        """Return what to replace."""
        value = node.inputs[0]
        producer = graph.producer(value, node.op_type)
        if value is None or producer is None:
            return None
        if node.op_type == "Relu":
            return Match.of_known(node, value)
        outer, inner = _bounds(node, graph), _bounds(producer, graph)
        if outer is None or inner is None:
            return Refusal("a bound is computed", node.name)
        if not graph.used_once(value):
            return Refusal("the inner result is needed", value.name)
        low = _meet(max, inner.low, outer.low)
        high = _meet(min, inner.high, outer.high)
        if low is not None and high is not None and low > high:
            return Refusal("the ranges do not meet", (low, high))
        x = inner.source
        return Match([node.outputs[0]], lambda op: op.Clip(x, low, high))


def _bounds(node: ir.Node, graph: GraphView) -> _Bounds | None:
    source = node.inputs[0]
    if source is None:
        return None
    given = [*node.inputs[1:], None, None][:2]
    numbers = [graph.scalar(v) for v in given]
    if any(v is not None and n is None for v, n in zip(given, numbers, strict=True)):
        return None
    return _Bounds(source, *numbers)


def _meet(
    choose: Callable[[float, float], float], a: float | None, b: float | None
) -> float | None:
    if a is None or b is None:
        return b if a is None else a
    return choose(a, b)
