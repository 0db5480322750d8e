"""Rotary embedding: ``x * cos + concat(-x[half:], x[:half]) * sin``, both halves of cos equal."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from dort_rewriter.graph.writer import Writer
from dort_rewriter.optimize.patterns.base import Refusal
from dort_rewriter.optimize.patterns.recognize.operands import (
    before_cast,
    before_rounding,
    factors,
    slice_of,
)
from dort_rewriter.optimize.view import GraphView

_OF_TABLES = ("Concat", "Cos", "Sin", "Mul", "Cast", "Unsqueeze")
_STEPS = 16
"""Nodes between a table and its halves; models have about four."""

Half = Callable[[Writer], ir.Value]
"""Builds the first half of a value along the last axis."""


@dataclass(frozen=True)
class Turn:
    """``x * cos + concat(-x[half:], x[:half]) * sin``, or the gradient of that,
    ``x * cos + concat(u[half:], -u[:half])`` with ``u = x * sin``."""

    x: ir.Value
    cos: ir.Value
    sin: ir.Value
    is_gradient: bool
    inside: Sequence[tuple[ir.Value, int]]
    """What lies between, and how often it is read here."""


@dataclass(frozen=True)
class Rotary:
    """A rotary embedding of x; cos and sin are tables of positions."""

    x: ir.Value
    cos: Half
    sin: Half
    size: int
    """Of a head."""


def find_rotary(total: ir.Node, graph: GraphView) -> Rotary | Refusal | None:
    """Whether a sum is a rotary embedding: four axes, one table for all batches and heads."""
    turn = find_turn(total, graph)
    if turn is None or turn.is_gradient or turn.x.dtype != total.outputs[0].dtype:
        return None
    return _measure(turn, graph)


def find_turn(total: ir.Node, graph: GraphView) -> Turn | None:
    """Whether a sum turns pairs of elements by angles.

    x may have been cast from 16 bits to float32, and the products to the 16 bits of the sum.
    """
    for straight, turned in factors(total):
        found = _forward(straight, turned, graph) or _gradient(straight, turned, graph)
        if found is not None:
            return found
    return None


def _forward(straight: ir.Value, turned: ir.Value, graph: GraphView) -> Turn | None:
    products = [before_rounding(v, graph) for v in (straight, turned)]
    for rotated, sin in factors(graph.producer(products[1], "Mul")):
        narrow = before_cast(rotated, graph)
        halves = None if narrow is None else _halves(narrow, graph)
        if narrow is None or halves is None or not halves[1]:
            continue
        for x, cos in factors(graph.producer(products[0], "Mul")):
            if x is halves[0] or before_cast(x, graph) is halves[0]:
                inside = dict.fromkeys((straight, turned, *products, rotated, narrow), 1)
                return Turn(halves[0], cos, sin, False, list(inside.items()))
    return None


def _gradient(straight: ir.Value, rotated: ir.Value, graph: GraphView) -> Turn | None:
    halves = _halves(rotated, graph)
    if halves is None or halves[1]:
        return None
    product, other = (before_rounding(v, graph) for v in (halves[0], straight))
    for x, sin in factors(graph.producer(product, "Mul")):
        for again, cos in factors(graph.producer(other, "Mul")):
            if again is x:
                inside = dict.fromkeys((straight, other, rotated, product), 1)
                return Turn(x, cos, sin, True, list({**inside, halves[0]: 2}.items()))
    return None


def _halves(value: ir.Value, graph: GraphView) -> tuple[ir.Value, bool] | None:
    """x of a value that has the halves of x along the last axis in the other order, one of them
    negative, and whether that is the upper one of x."""
    concat = graph.producer(value, "Concat")
    if concat is None or len(concat.inputs) != 2:
        return None
    if graph.attribute(concat, "axis") not in (-1, (graph.rank(value) or 0) - 1):
        return None
    negatives = [graph.producer(v, "Neg") for v in concat.inputs]
    if (negatives[0] is None) == (negatives[1] is None):
        return None
    upper, lower = (
        _half_of(v if negative is None else negative.inputs[0], graph)
        for v, negative in zip(concat.inputs, negatives, strict=True)
    )
    if upper is None or lower is None or upper[0] is not lower[0]:
        return None
    if (upper[1], lower[1]) != (1, 0):
        return None
    return upper[0], negatives[0] is not None


def _half_of(value: ir.Value | None, graph: GraphView) -> tuple[ir.Value, int] | None:
    """What a value is half of, along the last axis, and which of the two."""
    part = graph.producer(value, "Slice", "Split")
    source = None if part is None else part.inputs[0]
    dims = graph.dims(source)
    if part is None or value is None or source is None or not dims:
        return None
    size, last = dims[-1], len(dims) - 1
    if not isinstance(size, int) or size % 2:
        return None
    if part.op_type == "Split":
        axis = graph.attribute(part, "axis", 0) % len(dims)
        is_half = axis == last and (graph.dims(value) or (None,))[-1] == size // 2
        return (source, value.index() or 0) if is_half and len(part.outputs) == 2 else None
    piece = slice_of(part, graph)
    for i, start in enumerate((0, size // 2)):
        if piece == (source, last, start, start + size // 2):
            return source, i
    return None


def _measure(turn: Turn, graph: GraphView) -> Rotary | Refusal:
    x, cos, sin = turn.x, turn.cos, turn.sin
    dims = graph.dims(x)
    if dims is None or len(dims) != 4:
        return Refusal("not four axes", str(dims))
    size = dims[3]
    if not isinstance(size, int) or size % 2:
        return Refusal("heads of unknown or odd size", str(size))
    for table in (cos, sin):
        shape = graph.dims(table)
        if shape is None or len(shape) != 4 or tuple(shape[:2]) != (1, 1) or shape[3] != size:
            return Refusal("the table is not that of all batches and heads", str(shape))
        if str(shape[2]) != str(dims[2]):
            return Refusal("the table has other positions", str(shape))
    halves = _half(cos, graph), _half(sin, graph)
    if halves[0] is None or halves[1] is None:
        return Refusal("the halves of the table may differ", cos.name)
    return Rotary(x, halves[0], halves[1], size)


def _half(value: ir.Value | None, graph: GraphView) -> Half | None:
    """How to compute half of a value, where both are equal: ``concat(f, f)`` at the end."""
    steps: list[tuple[ir.Node, list[ir.Value | None]]] = []
    while (node := graph.producer(value, *_OF_TABLES)) is not None:
        rank = graph.rank(value)
        if rank is None or len(steps) > _STEPS:
            return None
        if node.op_type == "Concat":
            part = node.inputs[0]
            alike = len(node.inputs) == 2 and node.inputs[1] is part
            if not alike or part is None or graph.attribute(node, "axis") not in (-1, rank - 1):
                return None
            return functools.partial(_build_half, part, steps[::-1])
        axes = graph.axes(node, rank) if node.op_type == "Unsqueeze" else []
        if axes is None or rank - 1 in axes:
            return None
        value, rest = node.inputs[0], list(node.inputs[1:])
        if node.op_type == "Mul":
            scaled = [(a, b) for a, b in factors(node) if graph.rank(b) == 0]
            if not scaled:
                return None
            value, rest = scaled[0][0], [scaled[0][1]]
        steps.append((node, rest))
    return None


def _build_half(
    part: ir.Value, steps: Sequence[tuple[ir.Node, Sequence[ir.Value | None]]], op: Writer
) -> ir.Value:
    """Do to half of a table what was done to the whole."""
    for node, rest in steps:
        part = op.again(node, part, *rest)
    return part
