"""``x[i, :, j]`` and its assignment: several index tensors, broadcast, at some axes.

As in numpy, what the indices select stands where the first index was when they are neighbours, and
in front otherwise.

NOTE: ScatterND with a reduction is never emitted: onnxruntime runs it in parallel without guarding
elements that are met twice, and loses some of the sum. ScatterElements is right.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import onnx_ir as ir

from dort_rewriter.export.converters.axes import (
    OUTSIDE,
    broadcast_sizes,
    flatten,
    from_front,
    product,
    to_front,
)
from dort_rewriter.export.converters.own_kernels import write_rows
from dort_rewriter.export.converters.scattering import add_at
from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import Refused, converter
from dort_rewriter.graph.shapes import may_be_zero
from dort_rewriter.graph.values import Value

_INT64 = ir.DataType.INT64
_MASKS = (ir.DataType.BOOL, ir.DataType.UINT8)


class _Selection(NamedTuple):
    axes: list[int]
    """The axes with an index, in order."""
    indices: list[Value]

    @property
    def place(self) -> int:
        """Where the axes of the indices stand in the result."""
        together = self.axes == list(range(self.axes[0], self.axes[-1] + 1))
        return self.axes[0] if together else 0


def _selection(op: Recorder, indices: Sequence[Value | None]) -> _Selection:
    """The indices one by one: a mask stands for those of what it selects, along all its axes."""
    axes: list[int] = []
    given: list[Value] = []
    place = 0
    for index in indices:
        if index is None:
            place += 1
            continue
        found = _selected(op, index) if index.dtype in _MASKS else [op.cast(index, _INT64)]
        axes += range(place, place + len(found))
        given += found
        place += len(found)
    if not axes:  # torch fails too
        raise Refused("there is no index")
    return _Selection(axes, given)


def _selected(op: Recorder, mask: Value) -> list[Value]:
    if mask.rank == 0:
        raise Refused("a mask without axes adds one")
    places = op.NonZero(op.cast(mask, ir.DataType.BOOL))
    return [op.Gather(places, axis, axis=0) for axis in range(mask.rank)]


@converter("aten::index.Tensor", "aten::_unsafe_index.Tensor")
def index(op: Recorder, x: Value, indices: Sequence[Value | None]) -> Value:
    """index.Tensor(Tensor self, Tensor?[] indices) -> Tensor"""
    masks = [i for i in indices if i is not None and i.dtype in _MASKS]
    if len(masks) == 1 and indices == masks and masks[0].rank == 1:
        return op.Compress(x, op.cast(masks[0], ir.DataType.BOOL), axis=0)
    selection = _selection(op, indices)
    axes = selection.axes
    if len(axes) == 1:
        return op.Gather(x, selection.indices[0], axis=axes[0])
    if axes == list(range(len(axes))) or selection.place == 0:
        places = _tuples(op, selection.indices)
        return op.GatherND(to_front(op, x, axes), places)
    sizes = [op.size(x, i) for i in range(x.rank)]
    merged: list[Any] = [*sizes[: axes[0]], product(op, [sizes[a] for a in axes])]
    may_be_empty = any(map(may_be_zero, x.dims))
    flat = op.Reshape(
        x, op.vector([*merged, *sizes[axes[-1] + 1 :]]), allowzero=1 if may_be_empty else None
    )
    return op.Gather(flat, _linear(op, x, selection), axis=axes[0])


def _tuples(op: Recorder, indices: Sequence[Value]) -> Value:
    """The indices side by side along a new last axis."""
    sizes = op.vector(broadcast_sizes(op, indices))
    return (
        op.Concat(
            *(op.Unsqueeze(wide, [wide.rank]) for wide in (op.Expand(i, sizes) for i in indices)),
            axis=-1,
        )
        if len(indices) > 1
        else op.Unsqueeze(indices[0], [indices[0].rank])
    )


def _linear(op: Recorder, x: Value, selection: _Selection) -> Value:
    """The position among the elements of the indexed axes."""
    total: Any = None
    wrong: list[Value] = []
    for axis, places in zip(*selection, strict=True):
        size = op.size(x, axis)
        counted = _from_start(op, places, size)
        wrong += _outside(op, counted, size)
        total = counted if total is None else op.Add(op.Mul(total, op.vector([size])), counted)
    if wrong:  # the place it would stand for may be one of another row
        total = op.Where(functools.reduce(op.Or, wrong), OUTSIDE, total)
    rank = max(i.rank for i in selection.indices)
    return op.Squeeze(total, [0]) if rank == 0 and total.rank else total


def _from_start(op: Recorder, places: Value, size: int | Value) -> Value:
    known = places.const_value
    if known is not None and (known.numpy() >= 0).all():
        return places
    length = size if isinstance(size, int) else op.Squeeze(size, [0])
    return op.Where(op.Less(places, 0), op.Add(places, length), places)


def _outside(op: Recorder, places: Value, size: int | Value) -> list[Value]:
    """Where places counted from the start are outside, unless none is."""
    known = places.const_value
    if known is not None and isinstance(size, int) and (known.numpy() < size).all():
        return []
    length = size if isinstance(size, int) else op.Squeeze(size, [0])
    return [op.Less(places, 0), op.GreaterOrEqual(places, length)]


@converter("aten::index_put", "aten::_unsafe_index_put")
def index_put(
    op: Recorder,
    x: Value,
    indices: Sequence[Value | None],
    values: Value,
    accumulate: bool = False,
) -> Value:
    """index_put(Tensor self, Tensor?[] indices, Tensor values, bool accumulate=False) -> Tensor"""
    if (changed := _put_by_mask(op, x, indices, values, accumulate)) is not None:
        return changed
    selection = _selection(op, indices)
    if 0 in x.dims or any(0 in i.dims for i in selection.indices):
        return x
    if not accumulate and _is_rows(op, x, selection, values):
        (axis,), (places,) = selection.axes, selection.indices
        sizes = [op.size(places, 0) if i == axis else op.size(x, i) for i in range(x.rank)]
        rows = op.Expand(values, op.vector(sizes))
        return write_rows(op, x, places, rows, axis, wrap=True)
    source = _source(op, x, selection, values)
    moved = to_front(op, x, selection.axes)
    if accumulate:
        changed = _accumulate(op, moved, selection, source)
    else:
        changed = op.ScatterND(moved, _tuples(op, selection.indices), source)
    return from_front(op, changed, selection.axes)


def _is_rows(op: Recorder, x: Value, selection: _Selection, values: Value) -> bool:
    """Whether rows along one axis are written, and a kernel of ours does that."""
    if len(selection.axes) != 1 or not op.takes_own(x, values):
        return False
    return selection.indices[0].rank == 1 and values.rank <= x.rank


def _add(op: Recorder, a: Value, b: Value) -> Value:
    return op.Or(a, b) if a.dtype == ir.DataType.BOOL else op.Add(a, b)


def _source(op: Recorder, x: Value, selection: _Selection, values: Value) -> Value:
    """The values in full, the axes of the indices in front."""
    selected = broadcast_sizes(op, selection.indices)
    rest = [op.size(x, i) for i in range(x.rank) if i not in selection.axes]
    place, rank = selection.place, len(selected)
    full = [*rest[:place], *selected, *rest[place:]]
    wide = op.Expand(values, op.vector(full))
    return to_front(op, wide, list(range(place, place + rank)))


def _accumulate(op: Recorder, moved: Value, selection: _Selection, source: Value) -> Value:
    """Add at indices whose axes stand in front."""
    count = len(selection.axes)
    front = _Selection(list(range(count)), selection.indices)
    linear = _linear(op, moved, front)
    rest = [op.size(moved, i) for i in range(count, moved.rank)]
    width = product(op, rest)
    selected = broadcast_sizes(op, selection.indices)
    places = op.Reshape(op.Expand(linear, op.vector(selected)), [-1, 1])
    rows: tuple[Any, Any] = (-1, -1)
    allowzero = None
    if any(may_be_zero(d) for d in moved.dims[count:]):  # the other size is unknown then
        rows = (product(op, [op.size(moved, i) for i in range(count)]), op.size(places, 0))
        allowzero = 1
    data, updates = (
        op.Reshape(x, op.vector([n, width]), allowzero=allowzero)
        for x, n in zip((moved, source), rows, strict=True)
    )
    added = add_at(op, data, op.Expand(places, op.sizes(updates)), updates, axis=0)
    return op.Reshape(added, op.sizes(moved), allowzero=allowzero)


def _put_by_mask(
    op: Recorder, x: Value, indices: Sequence[Value | None], values: Value, accumulate: bool
) -> Value | None:
    """Assign where the only index, a mask, is true: a choice element by element."""
    given = [(i, v) for i, v in enumerate(indices) if v is not None]
    if len(given) != 1 or given[0][1].dtype not in _MASKS:
        return None
    axis, mask = given[0]
    rest = x.rank - axis - mask.rank
    if all(isinstance(d, int) for d in values.dims) and math.prod(values.dims) == 1:
        chosen = op.Reshape(values, op.constant([], _INT64))
    elif axis == 0 and (values.rank <= rest or values.dims[-rest - 1] == 1):
        chosen = values if values.rank <= rest else op.Squeeze(values, [0])
    elif axis == 0 and values.rank == rest + 1:
        chosen = _in_turn(op, mask, _as_many(op, mask, values))
    else:
        return None
    where = op.cast(mask, ir.DataType.BOOL)
    where = op.Unsqueeze(where, [mask.rank + i for i in range(rest)]) if rest else where
    return op.Where(where, _add(op, x, chosen) if accumulate else chosen, x)


def _as_many(op: Recorder, mask: Value, values: Value) -> Value:
    """The values, which are as many as a mask has true elements: others fail, as in eager mode."""
    count = op.ReduceSum(flatten(op, _ones(op, mask)), keepdims=0)
    rest = [op.size(values, i) for i in range(1, values.rank)]
    return op.Reshape(values, op.vector([count, *rest]), allowzero=1)


def _ones(op: Recorder, mask: Value) -> Value:
    """One where a mask, of truth values or bytes of any value, is true."""
    return op.cast(op.cast(mask, ir.DataType.BOOL), ir.DataType.INT64)


def _in_turn(op: Recorder, mask: Value, values: Value) -> Value:
    """Return, at each true element of a mask, the next of the values (elsewhere: anything)."""
    if not (isinstance(values.dims[0], int) and values.dims[0] > 0):  # Gather wants one at least
        one = op.vector([1, *(op.size(values, i) for i in range(1, values.rank))])
        values = op.Concat(
            values, op.cast(op.ConstantOfShape(one), values.dtype or op.dtype), axis=0
        )
    order = op.CumSum(flatten(op, _ones(op, mask)), 0)
    places = op.Reshape(op.Max(op.Sub(order, 1), 0), op.sizes(mask))
    return op.Gather(values, places, axis=0)


@converter("aten::masked_select")
def masked_select(op: Recorder, x: Value, mask: Value) -> Value:
    """masked_select(Tensor self, Tensor mask) -> Tensor"""
    sizes = op.vector(broadcast_sizes(op, [x, mask]))
    chosen = flatten(op, op.Expand(op.cast(mask, ir.DataType.BOOL), sizes))
    return op.Compress(flatten(op, op.Expand(x, sizes)), chosen, axis=0)


@converter("aten::masked_scatter")
def masked_scatter(op: Recorder, x: Value, mask: Value, source: Value) -> Value:
    """masked_scatter(Tensor self, Tensor mask, Tensor source) -> Tensor"""
    if 0 in source.dims:
        return x
    sizes = op.vector(broadcast_sizes(op, [x, mask]))
    where = op.Expand(op.cast(mask, ir.DataType.BOOL), sizes)
    return op.Where(where, _in_turn(op, where, flatten(op, source)), op.Expand(x, sizes))
