"""Sampling of two and three axes at the places a grid holds, and its gradients.

Along each axis a sample is a weighted sum of one (nearest), two (linear) or four (cubic) elements;
over all axes it is the sum of their products. Places outside count as zeros, or as those of the
border or of a reflection.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import onnx_ir as ir

from dort_rewriter.export.converters.axes import product
from dort_rewriter.export.converters.interpolation import cubic_slopes, cubic_weights
from dort_rewriter.export.converters.opmath import store, widen
from dort_rewriter.export.converters.scattering import add_at
from dort_rewriter.export.converters.windows import Size, spatial_sizes
from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import Arguments, Refused, by_name, converter
from dort_rewriter.graph.values import Value

_NEAREST, _CUBIC = 1, 2
_ZEROS, _BORDER, _REFLECTION = 0, 1, 2


class _Tap(NamedTuple):
    """An element along one axis, for each sample."""

    place: Value
    is_inside: Value
    weight: Value | None
    slope: Value | None
    """The derivative of the weight by the place."""


class _Sampler(NamedTuple):
    """What forward and backward share: where the samples of a grid come from."""

    taps: list[list[_Tap]]
    """Those of each axis, first axis first."""
    scales: list[Value]
    """How a place changes with the coordinate in the grid, axis by axis."""
    sizes: list[Size]


def _sampler(op: Recorder, x: Value, grid: Value, given: Arguments) -> _Sampler:
    rank = x.rank - 2
    if given.interpolation_mode == _CUBIC and rank != 2:
        raise Refused("bicubic sampling of three axes")
    sizes = spatial_sizes(op, x, rank)
    batch = op.size(grid, 0)
    taps, scales = [], []
    for axis, size in enumerate(sizes):
        coordinate = op.Gather(grid, rank - 1 - axis, axis=grid.rank - 1)
        flat = op.Reshape(coordinate, op.vector([batch, -1]))
        length = op.cast(op.vector([size]), flat.dtype or op.dtype)
        place, scale = _place(op, flat, length, given)
        taps.append(_taps(op, place, length, given))
        scales.append(scale)
    return _Sampler(taps, scales, sizes)


def _place(
    op: Recorder, coordinate: Value, length: Value, given: Arguments
) -> tuple[Value, Value]:
    """The place along an axis, and its derivative by the coordinate."""
    if given.align_corners:
        scale = (length - 1.0) / 2.0
        place = op.Mul((coordinate + 1.0) / 2.0, length - 1.0)
    else:
        scale = length / 2.0
        place = (op.Mul(coordinate + 1.0, length) - 1.0) / 2.0
    if given.interpolation_mode == _CUBIC or given.padding_mode == _ZEROS:
        return place, scale
    if given.padding_mode == _REFLECTION:
        place, sign = _reflect(op, place, length, given.align_corners)
        scale = op.Mul(scale, sign)
    inside = op.And(op.Greater(place, 0.0), op.Less(place, length - 1.0))
    return _clip(op, place, length), op.Where(inside, scale, op.constant(0, place.dtype))


def _clip(op: Recorder, place: Value, length: Value) -> Value:
    return op.Min(op.Max(place, 0.0), length - 1.0)


def _reflect(
    op: Recorder, place: Value, length: Value, align_corners: bool
) -> tuple[Value, Value]:
    """A place reflected between the ends, and 1 or -1 as it moves along or against it."""
    low = 0.0 if align_corners else -0.5
    span = length - 1.0 if align_corners else length
    away = place - low
    distance = op.Abs(away)
    over = op.Mod(distance, span, fmod=1)
    flips = op.Floor(op.Div(distance, span))
    is_even = op.Equal(op.Mod(flips, 2.0, fmod=1), 0.0)
    reflected = op.Where(is_even, over, span - over) + low
    one = op.constant(1, place.dtype)
    sign = op.Where(op.Equal(is_even, op.GreaterOrEqual(away, 0.0)), one, op.Neg(one))
    if not align_corners:
        return reflected, sign
    alone = op.Equal(span, 0.0)  # an axis of one element, between its own middle
    zero = op.constant(0, place.dtype)
    return op.Where(alone, zero, reflected), op.Where(alone, zero, sign)


def _taps(op: Recorder, place: Value, length: Value, given: Arguments) -> list[_Tap]:
    if given.interpolation_mode == _NEAREST:
        return [_tap(op, op.Round(place), length)]
    first = op.Floor(place)
    t = place - first
    if given.interpolation_mode != _CUBIC:
        one = op.constant(1, place.dtype)
        return [
            _tap(op, first, length, 1.0 - t, op.Neg(one)),
            _tap(op, first + 1.0, length, t, one),
        ]
    weights, slopes = cubic_weights(op, t), cubic_slopes(op, t)
    taps = []
    for i, weight, slope in zip(range(-1, 3), weights, slopes, strict=True):
        there = first + float(i)
        if given.padding_mode == _REFLECTION:
            there = _reflect(op, there, length, given.align_corners)[0]
        if given.padding_mode != _ZEROS:
            there = _clip(op, there, length)
        taps.append(_tap(op, there, length, weight, slope))
    return taps


def _tap(
    op: Recorder,
    place: Value,
    length: Value,
    weight: Value | None = None,
    slope: Value | None = None,
) -> _Tap:
    """Describe an element; a place outside (or NaN) stands for none."""
    is_inside = op.And(op.GreaterOrEqual(place, 0.0), op.Less(place, length))
    inside = op.Where(is_inside, place, op.constant(0, place.dtype))
    return _Tap(op.cast(inside, ir.DataType.INT64), is_inside, weight, slope)


class _Corner(NamedTuple):
    """One product of elements, for each sample."""

    taps: tuple[_Tap, ...]
    place: Value
    """Where it is in its plane, [N, 1, samples]."""
    is_inside: Value


def _corners(op: Recorder, sampler: _Sampler) -> list[_Corner]:
    corners = []
    for taps in itertools.product(*sampler.taps):
        index = taps[0].place
        for tap, size in zip(taps[1:], sampler.sizes[1:], strict=True):
            index = op.Add(op.Mul(index, op.vector([size])), tap.place)
        inside = functools.reduce(op.And, [tap.is_inside for tap in taps])
        corners.append(_Corner(taps, op.Unsqueeze(index, [1]), op.Unsqueeze(inside, [1])))
    return corners


def _weight(op: Recorder, taps: Sequence[_Tap], slope_of: int | None = None) -> Value | None:
    """The weight of a corner, [N, 1, samples], or its derivative along an axis."""
    factors = [tap.slope if i == slope_of else tap.weight for i, tap in enumerate(taps)]
    known = [factor for factor in factors if factor is not None]
    return op.Unsqueeze(functools.reduce(op.Mul, known), [1]) if known else None


def _planes(op: Recorder, x: Value, rank: int) -> Value:
    """The elements of each plane along one axis."""
    lead = [op.size(x, i) for i in range(2)]
    return op.Reshape(
        x, op.vector([*lead, product(op, [op.size(x, -i) for i in range(1, rank + 1)])])
    )


def _found(op: Recorder, planes: Value, corner: _Corner) -> Value:
    """The element of a corner for each sample, zero outside."""
    lead = [op.size(planes, i) for i in range(2)]
    places = op.Expand(corner.place, op.vector([*lead, 1]))
    found = op.GatherElements(planes, places, axis=2)
    return op.Where(corner.is_inside, found, op.constant(0, planes.dtype))


@converter("aten::grid_sampler_2d", "aten::grid_sampler_3d")
@by_name
def grid_sampler(op: Recorder, given: Arguments) -> Value:
    """grid_sampler_2d(Tensor input, Tensor grid, int interpolation_mode, int padding_mode, bool align_corners) -> Tensor"""
    x, grid = given.input, given.grid
    rank = x.rank - 2
    wide, places = widen(op, x), widen(op, grid)
    sampler = _sampler(op, wide, places, given)
    planes = _planes(op, wide, rank)

    def part(corner: _Corner) -> Value:
        weight = _weight(op, corner.taps)
        found = _found(op, planes, corner)
        return found if weight is None else op.Mul(found, weight)

    total = functools.reduce(op.Add, map(part, _corners(op, sampler)))
    sizes = [op.size(x, 0), op.size(x, 1), *(op.size(grid, i) for i in range(1, rank + 1))]
    return store(op, op.Reshape(total, op.vector(sizes)))


# -- gradients ---------------------------------------------------------------------------------


@converter("aten::grid_sampler_2d_backward", "aten::grid_sampler_3d_backward")
@by_name
def grid_sampler_backward(op: Recorder, given: Arguments) -> tuple[Value | None, Value | None]:
    """grid_sampler_2d_backward(Tensor grad_output, Tensor input, Tensor grid, int interpolation_mode, int padding_mode, bool align_corners, bool[2] output_mask) -> (Tensor, Tensor)"""
    x, grid = given.input, given.grid
    rank = x.rank - 2
    wide, places, slope = (widen(op, v) for v in (x, grid, given.grad_output))
    sampler = _sampler(op, wide, places, given)
    corners = _corners(op, sampler)
    flat = _planes(op, slope, rank)
    of_x = _of_input(op, flat, wide, corners) if given.output_mask[0] else None
    of_grid = None
    if given.output_mask[1] and given.interpolation_mode == _NEAREST:
        of_grid = op.Expand(op.constant(0, grid.dtype), op.sizes(grid))
    elif given.output_mask[1]:
        of_grid = _of_grid(op, flat, wide, sampler, corners, op.sizes(grid))
    return (
        None if of_x is None else op.cast(of_x, x.dtype or op.dtype),
        None if of_grid is None else op.cast(of_grid, grid.dtype or op.dtype),
    )


def _of_input(op: Recorder, grad: Value, x: Value, corners: Sequence[_Corner]) -> Value:
    lead = [op.size(x, i) for i in range(2)]
    places, updates = [], []
    for corner in corners:
        weight = _weight(op, corner.taps)
        share = grad if weight is None else op.Mul(grad, weight)
        updates.append(op.Where(corner.is_inside, share, op.constant(0, grad.dtype)))
        places.append(op.Expand(corner.place, op.vector([*lead, 1])))
    total = product(op, spatial_sizes(op, x, x.rank - 2))
    zeros = op.Expand(op.constant(0, x.dtype), op.vector([*lead, total]))
    index, update = op.Concat(*places, axis=2), op.Concat(*updates, axis=2)
    return op.Reshape(add_at(op, zeros, index, update, axis=2), op.sizes(x))


def _of_grid(
    op: Recorder,
    grad: Value,
    x: Value,
    sampler: _Sampler,
    corners: Sequence[_Corner],
    sizes: Value,
) -> Value:
    rank = len(sampler.sizes)
    planes = _planes(op, x, rank)
    totals: list[Any] = [None] * rank
    for corner in corners:
        along = op.ReduceSum(op.Mul(grad, _found(op, planes, corner)), [1], keepdims=1)
        for axis in range(rank):
            weight = _weight(op, corner.taps, axis)
            assert weight is not None
            part = op.Mul(along, weight)
            totals[axis] = part if totals[axis] is None else op.Add(totals[axis], part)
    columns = [
        op.Mul(op.Squeeze(total, [1]), scale)
        for total, scale in zip(totals, sampler.scales, strict=True)
    ]
    stacked = [op.Unsqueeze(column, [2]) for column in reversed(columns)]
    return op.Reshape(op.Concat(*stacked, axis=2), sizes)
