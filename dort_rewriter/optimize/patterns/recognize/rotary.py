"""Rotary embedding: ``x * cos + concat(-x[half:], x[:half]) * sin``, both halves of cos equal."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from dort_rewriter.graph.writer import Writer
from dort_rewriter.optimize.patterns.base import Refusal
from dort_rewriter.optimize.patterns.recognize.norms import factors
from dort_rewriter.optimize.patterns.recognize.pieces import slice_of
from dort_rewriter.optimize.view import GraphView

__all__ = ["Rotary", "find_rotary"]

_OF_TABLES = ("Concat", "Cos", "Sin", "Mul", "Cast", "Unsqueeze")
_STEPS = 16
"""Nodes between a table and its halves; models have about four."""

Half = Callable[[Writer], ir.Value]
"""Builds the first half of a value along the last axis."""


@dataclass(frozen=True)
class Rotary:
    """A rotary embedding of x; cos and sin are tables of positions."""

    x: ir.Value
    cos: Half
    sin: Half
    size: int
    """Of a head."""


def find_rotary(total: ir.Node, graph: GraphView) -> Rotary | Refusal | None:
    """Tell whether a sum is a rotary embedding: four axes, one table for all batches and heads."""
    for plain, turned in factors(total):
        product = graph.producer(turned, "Mul")
        for rotated, sin in factors(product) if product is not None else ():
            x = _rotated(rotated, graph)
            if x is None:
                continue
            other = graph.producer(plain, "Mul")
            cos = next((b for a, b in factors(other) if a is x), None) if other else None
            return None if cos is None else _measure(x, cos, sin, graph)
    return None


def _rotated(value: ir.Value, graph: GraphView) -> ir.Value | None:
    """x where a value is ``concat(-x[half:], x[:half])``."""
    concat = graph.producer(value, "Concat")
    if concat is None or len(concat.inputs) != 2:
        return None
    negative = graph.producer(concat.inputs[0], "Neg")
    if negative is None:
        return None
    last = slice_of(graph.producer(negative.inputs[0]), graph)
    first = slice_of(graph.producer(concat.inputs[1]), graph)
    if last is None or first is None or last.source is not first.source:
        return None
    dims = graph.dims(first.source)
    axis = len(dims) - 1 if dims else 0
    size = dims[axis] if dims else None
    if not isinstance(size, int) or graph.attribute(concat, "axis") not in (axis, -1):
        return None
    bounds = (first.axis, first.start, first.end, last.axis, last.start, last.end)
    return first.source if bounds == (axis, 0, size // 2, axis, size // 2, size) else None


def _measure(
    x: ir.Value, cos: ir.Value, sin: ir.Value, graph: GraphView
) -> Rotary | Refusal | None:
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
        attributes = {name: a.value for name, a in node.attributes.items()}
        part = op.call(node.op_type, part, *rest, **attributes)
    return part
