"""Bounds on numbers, one after the other."""

from __future__ import annotations

import math
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

    Also ``Relu(Relu(x)) -> Relu(x)``, ``Max(Max(x, a), b) -> Max(x, max(a, b))`` and Min likewise.
    NOTE: Relu, Clip and Max are not mixed: what they make of a NaN is not the same everywhere.
    """

    roots = ("Clip", "Relu", "Max", "Min")
    reads = ("Clip", "Relu", "Max", "Min")

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        """What to replace."""
        value = node.inputs[0]
        producer = graph.producer(value, node.op_type)
        if value is None or producer is None:
            return None
        if node.op_type == "Relu":
            return Match.of_known(node, value)
        if node.op_type in ("Max", "Min"):
            return _extremum(node, producer, graph)
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


def _extremum(node: ir.Node, producer: ir.Node, graph: GraphView) -> Match | Refusal | None:
    """Match a largest of a largest, or a smallest of a smallest, each with a number."""
    value, outer = node.inputs[0], _number(node, graph)
    inner, x = _number(producer, graph), producer.inputs[0]
    if outer is None or inner is None or value is None or x is None:
        return None
    if not graph.used_once(value):
        return Refusal("the inner result is needed", value.name)
    if not graph.same_shape(x, node.outputs[0]):
        return Refusal("a number makes the result larger", str(node.outputs[0].shape))
    number = max(inner, outer) if node.op_type == "Max" else min(inner, outer)
    return Match([node.outputs[0]], lambda op: op.call(node.op_type, x, number))


def _number(node: ir.Node, graph: GraphView) -> float | None:
    """The number that is the second of two inputs."""
    number = graph.scalar(node.inputs[1]) if len(node.inputs) == 2 else None
    return number if number is not None and math.isfinite(number) else None


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
