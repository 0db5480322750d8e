"""Where the elements of a resized axis come from: places in the source, and their weights.

The arithmetic is that of torch, in its precision: a place that is rounded otherwise is another
element.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from dort_rewriter.export.converters.scattering import add_at
from dort_rewriter.export.converters.windows import Size, count_up
from dort_rewriter.export.recorder import Recorder
from dort_rewriter.graph.values import Value

_CUBIC = -0.75
"""torch's parameter of the cubic convolution."""


class Axis(NamedTuple):
    """An axis that is resized."""

    source: Size
    target: Size
    factor: float | None = None
    """The factor the user asked for, when it decides in place of the two sizes."""
    align_corners: bool = False


class Taps(NamedTuple):
    """What the elements along a resized axis are sums of."""

    indices: list[Value]
    """Places in the source, one 1-D result a summand."""
    weights: list[Value] | None = None
    """Their weights; None for a single one of weight 1."""


def _ratio(op: Recorder, axis: Axis, dtype: ir.DataType) -> Value:
    """How far apart the elements of the target lie in the source."""
    if axis.factor is not None and not axis.align_corners:
        return op.constant(1.0 / axis.factor, dtype)
    shift = int(axis.align_corners)
    if isinstance(axis.source, int) and isinstance(axis.target, int):
        kind = dtype.numpy().type
        if axis.target <= shift:
            return op.constant(0.0, dtype)
        return op.constant(kind(axis.source - shift) / kind(axis.target - shift), dtype)
    source, target = (op.cast(op.vector([n]), dtype) for n in (axis.source, axis.target))
    if not shift:
        return op.Div(source, target)
    steps = op.Max(target - 1.0, 1.0)  # one element comes from place 0
    return op.Div(source - 1.0, steps)


def _places(op: Recorder, axis: Axis, dtype: ir.DataType) -> Value:
    return op.cast(count_up(op, axis.target), dtype)


def _positions(op: Recorder, axis: Axis, dtype: ir.DataType) -> Value:
    """The real place in the source of each element of the target."""
    ratio, places = _ratio(op, axis, dtype), _places(op, axis, dtype)
    if axis.align_corners:
        return op.Mul(ratio, places)
    return op.Mul(ratio, places + 0.5) - 0.5


def _within(op: Recorder, index: Value, size: Size) -> Value:
    """Keep places within the source."""
    return op.Max(op.Min(index, op.vector([size - 1])), op.vector([0]))


def nearest_taps(op: Recorder, axis: Axis, *, exact: bool) -> Taps:
    """The nearest element; `exact` counts from the middle of the elements."""
    dtype = ir.DataType.FLOAT
    places = _places(op, axis, dtype)
    floor = op.Floor(op.Mul(places + 0.5 if exact else places, _ratio(op, axis, dtype)))
    return Taps([_within(op, op.cast(floor, ir.DataType.INT64), axis.source)])


def linear_taps(op: Recorder, axis: Axis, dtype: ir.DataType) -> Taps:
    """The two neighbours."""
    position = op.Max(_positions(op, axis, dtype), 0.0)
    first = _within(op, op.cast(op.Floor(position), ir.DataType.INT64), axis.source)
    second = op.Min(first + 1, op.vector([axis.source - 1]))
    share = op.Min(op.Max(position - op.cast(first, dtype), 0.0), 1.0)
    return Taps([first, second], [1.0 - share, share])


def cubic_taps(op: Recorder, axis: Axis, dtype: ir.DataType) -> Taps:
    """The four neighbours; past an end its element is repeated."""
    position = _positions(op, axis, dtype)
    floor = op.Floor(position)
    t = position - floor
    first = op.cast(floor, ir.DataType.INT64)
    indices = [_within(op, first + i, axis.source) for i in range(-1, 3)]
    return Taps(indices, cubic_weights(op, t))


def cubic_weights(op: Recorder, t: Value) -> list[Value]:
    """The weights of four neighbours, `t` past the second of them."""
    a = _CUBIC

    def near(x: Value) -> Value:
        return ((a + 2) * x - (a + 3)) * x * x + 1.0

    def far(x: Value) -> Value:
        return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a

    return [far(t + 1.0), near(t), near(1.0 - t), far(2.0 - t)]


def cubic_slopes(op: Recorder, t: Value) -> list[Value]:
    """The derivatives of :func:`cubic_weights` by `t`."""
    a = _CUBIC

    def near(x: Value) -> Value:
        return (3 * (a + 2) * x - 2 * (a + 3)) * x

    def far(x: Value) -> Value:
        return (3 * a * x - 10 * a) * x + 8 * a

    return [far(t + 1.0), near(t), op.Neg(near(1.0 - t)), op.Neg(far(2.0 - t))]


def gather_taps(op: Recorder, x: Value, axis: int, taps: Taps) -> Value:
    """The resized axis (counted from the end)."""
    parts = [op.Gather(x, index, axis=x.rank + axis) for index in taps.indices]
    if taps.weights is None:
        return parts[0]
    column = [-1] + [1] * (-axis - 1)
    weighted = [
        op.Mul(part, op.Reshape(weight, column))
        for part, weight in zip(parts, taps.weights, strict=True)
    ]
    return functools.reduce(op.Add, weighted)


def to_source(op: Recorder, grad: Value, axis: int, taps: Taps, size: Size) -> Value:
    """The gradient of :func:`gather_taps`, for a source of the given size.

    NOTE: a product with the weights as a matrix: one infinite or NaN element spreads along its
    axis, where torch keeps it among the neighbours.
    """
    place = grad.rank + axis
    sizes: list[Size] = [op.size(grad, i) for i in range(grad.rank)]
    if taps.weights is None:
        sizes[place] = size
        zeros = op.Expand(op.constant(0, grad.dtype), op.vector(sizes))
        column = op.Reshape(taps.indices[0], [-1] + [1] * (-axis - 1))
        return add_at(op, zeros, op.Expand(column, op.sizes(grad)), grad, axis=place)
    columns = count_up(op, size)
    parts = []
    for index, weight in zip(taps.indices, taps.weights, strict=True):
        hit = op.Equal(op.Unsqueeze(index, [1]), columns)
        parts.append(op.Where(hit, op.Unsqueeze(weight, [1]), op.constant(0, weight.dtype)))
    matrix = functools.reduce(op.Add, parts)
    if axis == -1:
        return op.MatMul(grad, matrix)
    rows = op.Transpose(matrix, perm=[1, 0])
    if axis == -2:
        return op.MatMul(rows, grad)
    flat = op.Reshape(grad, op.vector([*sizes[: place + 1], -1]))
    sizes[place] = size
    return op.Reshape(op.MatMul(rows, flat), op.vector(sizes))


def repetition(axes: Sequence[Axis]) -> list[int] | None:
    """How often each element is repeated along each axis, when that is all there is to do."""
    found = []
    for axis in axes:
        times = axis.factor
        if times is None:
            if not isinstance(axis.source, int) or not isinstance(axis.target, int):
                return None
            times = axis.target / axis.source if axis.source else 0.0
        if times < 1 or times != int(times):
            return None
        # NOTE: torch multiplies by a rounded 1 / times: for some factors and sizes, an element early.
        if not _is_exact(int(times), axis.target):
            return None
        found.append(int(times))
    return found


def _is_exact(times: int, target: Size) -> bool:
    if times & (times - 1) == 0:
        return True  # a power of two
    if not isinstance(target, int):
        return False
    places = np.arange(target, dtype=np.float32)
    ratio = np.float32(1.0 / times)
    middle = np.floor((places + np.float32(0.5)) * ratio)
    return bool(
        (np.floor(places * ratio) == np.arange(target) // times).all()
        and (middle == np.arange(target) // times).all()
    )
