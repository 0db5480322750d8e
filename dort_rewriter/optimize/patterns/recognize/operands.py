"""What an operand is: a value times a number, a cast, a number throughout, a range of an axis."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import onnx_ir as ir

from dort_rewriter.optimize.view import GraphView, operator


def factors(node: ir.Node | None) -> Iterator[tuple[ir.Value, ir.Value]]:
    """The inputs of a commutative node in both orders; none of no node."""
    a, b = (None, None) if node is None else node.inputs
    if a is not None and b is not None:
        yield a, b
        yield b, a


def beside(node: ir.Node, value: ir.Value) -> ir.Value | None:
    """What a product or a sum reads with a value; None where that is the value again."""
    return next((b for a, b in factors(node) if a is value and b is not value), None)


def only_axis(reduction: ir.Node, x: ir.Value) -> int:
    """The axis of a reduction of x over one."""
    axes = GraphView.axes(reduction, GraphView.rank(x))
    assert axes is not None
    return axes[0]


def number_of(value: ir.Value | None, graph: GraphView) -> float | None:
    """The constant of one element that a value is, when it is a finite number."""
    number = graph.scalar(value)
    if isinstance(number, bool) or not isinstance(number, int | float):
        return None
    return number if math.isfinite(number) else None


def scaled(node: ir.Node | None, graph: GraphView) -> tuple[ir.Value, float] | None:
    """x and s of a node that is ``x * s`` or ``x / (1 / s)``, with the rank of x; s is not 0.

    NOTE: a quotient of integers is no product.
    """
    if node is None or operator(node) not in ("Mul", "Div"):
        return None
    is_quotient = node.op_type == "Div"
    for x, constant in list(factors(node))[: 1 if is_quotient else 2]:
        number = number_of(constant, graph)
        if not number or (is_quotient and isinstance(number, int)):
            continue
        if not (rank := graph.rank(constant) or 0) or rank <= (graph.rank(x) or 0):
            return x, 1 / number if is_quotient else number
    return None


NARROW = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
"""The types of 16 bits that are computed in float32."""


def before_cast(value: ir.Value | None, graph: GraphView) -> ir.Value | None:
    """What a value was before it was cast from a 16-bit type to float32, else the value."""
    cast = graph.producer(value, "Cast")
    if cast is None or value is None or value.dtype != ir.DataType.FLOAT:
        return value
    source = cast.inputs[0]
    return source if source is not None and source.dtype in NARROW else value


def before_rounding(value: ir.Value, graph: GraphView) -> ir.Value:
    """What a value was before it was cast from float32 to a 16-bit type, else the value."""
    cast = graph.producer(value, "Cast")
    source = None if cast is None or value.dtype not in NARROW else cast.inputs[0]
    return value if source is None or source.dtype != ir.DataType.FLOAT else source


def after_cast(value: ir.Value, graph: GraphView) -> ir.Value:
    """What a value of float32 is cast to, if that is a 16-bit type and all that reads it."""
    cast = graph.reader(value, "Cast") if value.dtype == ir.DataType.FLOAT else None
    return value if cast is None or cast.outputs[0].dtype not in NARROW else cast.outputs[0]


def filling(value: ir.Value | None, graph: GraphView, limit: int | None = None) -> float | None:
    """The number that all elements of a value are; None when that is not known.

    Constants of more than ``limit`` elements are not looked at.
    """
    if (expand := graph.producer(value, "Expand")) is not None:
        value = expand.inputs[0]
    if (shaped := graph.producer(value, "ConstantOfShape")) is not None:
        held = graph.attribute(shaped, "value")
        return 0.0 if held is None else float(held.numpy().ravel()[0])
    array = graph.constant(value, limit)
    if array is None or not array.size or not (array == array.ravel()[0]).all():
        return None
    return float(array.ravel()[0])


class Piece(NamedTuple):
    """What a Slice of one axis takes, by steps of 1."""

    source: ir.Value
    axis: int
    start: int
    end: int
    """Not larger than the size of the axis when that is known."""


def slice_of(node: ir.Node | None, graph: GraphView) -> Piece | None:
    """What a Slice takes, when it is a range of one axis and its bounds are constants."""
    if node is None or node.op_type != "Slice" or node.domain or len(node.inputs) < 3:
        return None
    source = node.inputs[0]
    rank = graph.rank(source)
    numbers = [graph.integers(v) for v in node.inputs[1:]]
    if source is None or rank is None or any(n is None or len(n) != 1 for n in numbers):
        return None
    start, end, axis, step = [*(n[0] for n in numbers if n), *([0, 1][len(numbers) - 4 :])][:4]
    size = (graph.dims(source) or ())[axis % rank]
    if isinstance(size, int):
        start, end = (min(max(b + size if b < 0 else b, 0), size) for b in (start, end))
    if step != 1 or start < 0 or end < start:
        return None
    return Piece(source, axis % rank, start, end)


def reads_or_makes_narrow(node: ir.Node, graph: GraphView) -> bool:
    """Whether a node computes 16-bit numbers: they are its own, or casts are around it."""
    x, y = node.inputs[0], node.outputs[0]
    if x is None or x.dtype != y.dtype:
        return False
    around = before_cast(x, graph) is not x or after_cast(y, graph) is not y
    return x.dtype in NARROW or around
