"""Pooling by maximum over one to three axes, and its gradient.

The windows are reduced one axis after the other, by slices that hold the same place of each window.

NOTE: ONNX's MaxPool is not emitted: onnxruntime loses NaN, gives the lowest number for a window of
-inf, and takes twice the time of the slices when it returns indices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from dort_rewriter.export.converters import own_kernels
from dort_rewriter.export.converters.axes import pad_axes, product, refuse_negative
from dort_rewriter.export.converters.opmath import cast_like, is_float, store, widen
from dort_rewriter.export.converters.reductions import extremum
from dort_rewriter.export.converters.scattering import scatter
from dort_rewriter.export.converters.windows import (
    Size,
    Windows,
    count_up,
    count_windows,
    make_windows,
    margins,
    spatial_sizes,
    window_parts,
)
from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import Arguments, by_name, converter
from dort_rewriter.graph.values import Value

_I64 = ir.DataType.INT64
_LONG = 16
"""Places in a window above which one that covers its axis is reduced at once."""


def lowest(dtype: ir.DataType) -> Any:
    """What a maximum starts from."""
    if dtype.is_floating_point():
        return -np.inf
    return int(np.iinfo(dtype.numpy()).min)


def max_pool(
    op: Recorder, x: Value, windows: Sequence[Windows], *, indexed: bool
) -> tuple[Value, Value | None]:
    """The largest element of each window and its place in the plane (None if not asked).

    As in torch the first of equal elements counts, and the last NaN.
    """
    rank = len(windows)
    wide = widen(op, x)
    if rank > 1 and op.takes_own(wide):
        pool = own_kernels.max_pool if rank == 2 else _pool_planes
        found, chosen = pool(op, wide, windows, indexed=indexed)
        return cast_like(op, found, x), chosen
    value, place = x, planes(op, x, rank) if indexed else None
    for axis in reversed(range(-rank, 0)):
        value, place = _pool_axis(op, value, place, axis, windows[axis])
    return value, None if place is None else indices_of(op, value, place)


def _pool_planes(
    op: Recorder, x: Value, windows: Sequence[Windows], *, indexed: bool
) -> tuple[Value, Value | None]:
    """Pool three axes by our kernel for two: each plane, then rows as long as what is left of one.

    The first of equal elements of the first such plane is the first one of the window.
    """
    depth, *plane = spatial_sizes(op, x, 3)
    lead = _lead(op, x, (depth, *plane))
    depths, *sizes = (
        count_windows(op, n, w) for n, w in zip((depth, *plane), windows, strict=True)
    )
    row = product(op, sizes)
    flat, whole = op.vector([*lead, depth, row]), op.vector([*lead, depths, *sizes])
    value, place = own_kernels.max_pool(op, x, windows[1:], indexed=indexed)
    along = (windows[0], Windows(1, 1, 0, 1, False))
    value, of_row = own_kernels.max_pool(op, op.Reshape(value, flat), along, indexed=indexed)
    value = op.Reshape(value, whole)
    if place is None or of_row is None:
        return value, None
    listed = op.vector([*lead, -1])
    chosen, of_row = op.Reshape(place, listed), op.Reshape(of_row, listed)
    first = op.Mul(op.Div(of_row, op.vector([row])), op.vector([product(op, plane)]))
    chosen = op.Add(op.GatherElements(chosen, of_row, axis=-1), first)
    return value, op.Reshape(chosen, whole)


def indices_of(op: Recorder, value: Value, place: Value) -> Value:
    """Places as torch does: int64, one a value (windows of one element chose none)."""
    return op.cast(op.Expand(place, op.sizes(value)) if place.rank < value.rank else place, _I64)


def planes(op: Recorder, x: Value, rank: int) -> Value:
    """The place of each element in its plane."""
    sizes = spatial_sizes(op, x, rank)
    # NOTE: int32 halves the time of choosing places; a plane is smaller than its limit.
    flat = op.cast(count_up(op, product(op, sizes)), ir.DataType.INT32)
    return op.Reshape(flat, op.vector(sizes))


def _pool_axis(
    op: Recorder, value: Value, place: Value | None, axis: int, windows: Windows
) -> tuple[Value, Value | None]:
    size = op.size(value, axis)
    if windows.kernel > _LONG and size == windows.kernel and not windows.padding:
        return _whole_axis(op, value, place, axis)
    count = count_windows(op, size, windows)
    before, after = margins(size, count, windows)
    assert value.dtype is not None
    if before or after:
        filler = op.constant(lowest(value.dtype), value.dtype)
        value = pad_axes(op, value, [before, after], [axis], filler)
    values = window_parts(op, value, axis, count, windows)
    if place is None:
        return values[0] if len(values) == 1 else op.Max(*values), None
    if before or after:
        place = _pad_places(op, place, axis, size, before, after, windows.dilation)
    return choose(op, values, window_parts(op, place, axis, count, windows))


def _pad_places(
    op: Recorder, place: Value, axis: int, size: Size, before: int, after: int, dilation: int
) -> Value:
    """Pad places: what lies in front stands for the first element of its window in the plane.

    Only a window without any number above -inf keeps such a place.
    """
    head = [i % dilation for i in range(-before, 0)]
    if isinstance(size, int):
        last = [size - 1] * after
        return op.Gather(place, [*head, *range(size), *last], axis=place.rank + axis)
    parts = [op.Gather(place, head, axis=place.rank + axis)] if head else []
    whole = op.Concat(*parts, place, axis=axis)
    return pad_axes(op, whole, [0, after], [axis], 0) if after else whole


def choose(op: Recorder, values: Sequence[Value], places: Sequence[Value]) -> tuple[Value, Value]:
    """The largest values, and of the places beside the values those they come from."""
    value, place = values[0], places[0]
    for other, there in zip(values[1:], places[1:], strict=True):
        wins = op.Greater(other, value)
        if is_float(other):
            wins = op.Or(wins, op.IsNaN(other))
        # Not their Max: the first of two zeros counts, whatever its sign.
        value, place = op.Where(wins, other, value), op.Where(wins, there, place)
    return value, place


def _whole_axis(
    op: Recorder, value: Value, place: Value | None, axis: int
) -> tuple[Value, Value | None]:
    """Reduce an axis that a window covers."""
    if place is None:
        return extremum(op, "ReduceMax", value, axis, True), None
    largest, where = largest_along(op, value, axis)
    places = op.Expand(place, op.sizes(value))
    return largest, op.GatherElements(places, where, axis=axis)


def largest_along(op: Recorder, x: Value, axis: int) -> tuple[Value, Value]:
    """The largest element along an axis and its place: the first, or that of the last NaN."""
    largest = extremum(op, "ReduceMax", x, axis, True)
    where = op.ArgMax(x, axis=axis, keepdims=1)
    if not is_float(x):
        return largest, where
    flags = op.cast(op.IsNaN(x), ir.DataType.INT32)
    last = op.ArgMax(flags, axis=axis, keepdims=1, select_last_index=1)
    return largest, op.Where(op.IsNaN(largest), last, where)


# -- the gradient ------------------------------------------------------------------------------


def scatter_gradient(
    op: Recorder, grad: Value, x: Value, indices: Value, rank: int, *, overlap: bool
) -> Value:
    """Add gradients at the places their windows chose."""
    sizes = spatial_sizes(op, x, rank)
    is_plain = grad.dtype == ir.DataType.FLOAT and grad.rank == rank + 2 and 0 not in grad.dims
    if is_plain and not overlap:
        return _unpool(op, grad, indices, sizes)
    # To zeros -0.0 is added, which is written where windows do not overlap.
    return _put(op, grad if overlap else grad + 0.0, indices, sizes, "add" if overlap else "none")


def _add_to_volumes(op: Recorder, grad: Value, indices: Value, x: Value) -> Value:
    """Add gradients at the places their windows chose, by our kernel for two axes."""
    sizes = spatial_sizes(op, x, 3)
    lead = _lead(op, x, sizes)
    rows = op.vector([*lead, 1, -1])
    shape = op.vector([*lead, 1, product(op, sizes)])
    flat = op.own("MaxPoolGrad", op.Reshape(grad, rows), op.Reshape(indices, rows), shape)
    return op.Reshape(flat, op.sizes(x))


def _put(
    op: Recorder, values: Value, indices: Value, sizes: Sequence[Size], reduction: str = "none"
) -> Value:
    """Put (or add) values at their places in planes of zeros."""
    lead = _lead(op, values, sizes)
    whole = op.vector([*lead, *sizes])
    if 0 in values.dims:
        return op.Expand(op.constant(0, op.dtype), whole)
    rows = product(op, lead)
    flat = op.vector([rows, -1])
    zeros = op.Expand(op.constant(0, op.dtype), op.vector([rows, product(op, sizes)]))
    places, updates = op.Reshape(indices, flat), op.Reshape(values, flat)
    return op.Reshape(scatter(op, zeros, 1, places, updates, reduction), whole)


def _unpool(op: Recorder, values: Value, indices: Value, sizes: Sequence[Size]) -> Value:
    """Put values at their places: several times faster than ScatterElements.

    NOTE: for places of our own making. onnxruntime does not check them plane by plane, and
    onnxruntime-training writes wherever they tell it to.
    """
    lead = _lead(op, values, sizes)
    starts = op.Mul(count_up(op, product(op, lead)), op.vector([product(op, sizes)]))
    ones = [1] * len(sizes)
    places = op.Add(indices, op.Reshape(starts, op.vector([*lead, *ones])))
    shape = op.vector([*lead, *sizes])
    return op.MaxUnpool(values, places, shape, kernel_shape=ones, strides=ones)


def _lead(op: Recorder, values: Value, sizes: Sequence[Size]) -> list[Any]:
    """The sizes of the axes before those of the planes."""
    return [op.size(values, i) for i in range(values.rank - len(sizes))]


def _is_indexed(op: Recorder) -> bool:
    """Whether the graph uses the second result of the FX node under conversion."""
    return any(user.args[1:] == (1,) for user in op.fx_node.users) or not op.fx_node.users


def _register(rank: int) -> None:
    @converter(f"aten::max_pool{rank}d")
    @by_name
    def pool(op: Recorder, given: Arguments) -> Value:
        """max_pool2d(Tensor self, int[2] kernel_size, int[2] stride=[], int[2] padding=0, int[2] dilation=1, bool ceil_mode=False) -> Tensor"""
        return max_pool(op, given.x, make_windows(rank, given), indexed=False)[0]

    @converter(f"aten::max_pool{rank}d_with_indices")
    @by_name
    def pool_with_indices(op: Recorder, given: Arguments) -> tuple[Value, Value | None]:
        """max_pool2d_with_indices(Tensor self, int[2] kernel_size, int[2] stride=[], int[2] padding=0, int[2] dilation=1, bool ceil_mode=False) -> (Tensor, Tensor)"""
        return max_pool(op, given.x, make_windows(rank, given), indexed=_is_indexed(op))

    if rank == 1:
        return  # torch computes its gradient as that of two axes

    @converter(f"aten::max_pool{rank}d_with_indices_backward")
    @by_name
    def pool_backward(op: Recorder, given: Arguments) -> Value:
        """max_pool2d_with_indices_backward(Tensor grad_output, Tensor self, int[2] kernel_size, int[2] stride, int[2] padding, int[2] dilation, bool ceil_mode, Tensor indices) -> Tensor"""
        wide = widen(op, given.grad_output)
        if rank == 2 and op.takes_own(wide):
            return store(op, op.own("MaxPoolGrad", wide, given.indices, op.sizes(given.x)))
        if op.takes_own(wide):
            return store(op, _add_to_volumes(op, wide, given.indices, given.x))
        overlap = any(w.overlap for w in make_windows(rank, given))
        read = (given.grad_output, given.x, given.indices)
        return scatter_gradient(op, *read, rank, overlap=overlap)


@converter("aten::max_unpool2d", "aten::max_unpool3d")
@by_name
def max_unpool(op: Recorder, given: Arguments) -> Value:
    """max_unpool2d(Tensor self, Tensor indices, SymInt[2] output_size) -> Tensor"""
    return _put(op, given.x, refuse_negative(op, given.indices), given.output_size)


for _rank in (1, 2, 3):
    _register(_rank)
