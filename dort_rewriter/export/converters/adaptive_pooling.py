"""Pooling to a given size, by average and by maximum, and the gradients.

Window i of n over H elements goes from floor(i H / n) to ceil((i + 1) H / n): windows of one length
side by side when n divides H.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from dort_rewriter.export.converters.average_pooling import average_pool, average_pool_backward
from dort_rewriter.export.converters.axes import product
from dort_rewriter.export.converters.max_pooling import (
    choose,
    indices_of,
    largest_along,
    max_pool,
    planes,
    scatter_gradient,
)
from dort_rewriter.export.converters.opmath import is_float, store, widen
from dort_rewriter.export.converters.windows import Windows, spatial_sizes
from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import Refused, converter
from dort_rewriter.graph.values import Value


@dataclass(frozen=True)
class _Cells:
    """The windows along one axis: where they start and end."""

    starts: np.ndarray[Any, Any]
    ends: np.ndarray[Any, Any]
    size: int

    @property
    def count(self) -> int:
        """How many windows there are."""
        return len(self.starts)

    @property
    def are_equal(self) -> bool:
        """Whether the windows are of one length, side by side."""
        return self.size % self.count == 0


def _counts(output_size: Sequence[Any], rank: int) -> list[Any]:
    return list(output_size) if len(output_size) == rank else list(output_size) * rank


def _cells(op: Recorder, x: Value, rank: int, output_size: Sequence[Any]) -> list[_Cells]:
    cells = []
    for axis, count in zip(range(-rank, 0), _counts(output_size, rank), strict=True):
        size = op.size(x, axis)
        count = size if count is None else count
        if not isinstance(size, int) or not isinstance(count, int):
            raise Refused("adaptive pooling of or to a symbolic size, other than to one element")
        places = np.arange(count)
        cells.append(_Cells(places * size // count, -((places + 1) * -size // count), size))
    return cells


def _equal_windows(cells: Sequence[_Cells]) -> list[Windows] | None:
    if not all(c.are_equal for c in cells):
        return None
    lengths = [c.size // c.count for c in cells]
    return [Windows(length, length) for length in lengths]


def _to_one(output_size: Sequence[Any]) -> bool:
    return all(isinstance(n, int) and n == 1 for n in output_size)


def _adaptive_average(op: Recorder, x: Value, rank: int, output_size: Sequence[Any]) -> Value:
    if 0 in x.dims:  # onnxruntime's ReduceMean returns it as it is
        lead = [op.size(x, i) for i in range(x.rank - rank)]
        counts = _counts(output_size, rank)
        return op.Expand(op.constant(0, op.dtype), op.vector([*lead, *counts]))
    if _to_one(output_size):
        return op.cast(op.ReduceMean(widen(op, x), list(range(-rank, 0)), keepdims=1), op.dtype)
    cells = _cells(op, x, rank, output_size)
    if (windows := _equal_windows(cells)) is not None:
        return average_pool(op, x, windows)
    wide = widen(op, x)
    for axis in reversed(range(-rank, 0)):
        wide = _average_axis(op, wide, axis, cells[axis])
    return store(op, wide)


def _average_axis(op: Recorder, x: Value, axis: int, cells: _Cells) -> Value:
    parts = []
    for start, end in zip(cells.starts, cells.ends, strict=True):
        part = op.Slice(x, [int(start)], [int(end)], [x.rank + axis])
        parts.append(op.ReduceMean(part, [axis], keepdims=1) if end - start > 1 else part)
    return op.Concat(*parts, axis=axis)


def _adaptive_average_backward(op: Recorder, grad: Value, x: Value, rank: int) -> Value:
    counts = grad.dims[-rank:]
    if _to_one(counts):
        share = widen(op, grad)
        for axis in range(-rank, 0):
            share = op.Div(share, op.cast(op.vector([op.size(x, axis)]), share.dtype))
        return store(op, op.Expand(share, op.sizes(x)))
    cells = _cells(op, x, rank, counts)
    if (windows := _equal_windows(cells)) is not None:
        return average_pool_backward(op, grad, x, windows)
    share = widen(op, grad)
    for axis in reversed(range(-rank, 0)):
        share = _share_axis(op, share, axis, cells[axis])
    return store(op, share)


def _share_axis(op: Recorder, grad: Value, axis: int, cells: _Cells) -> Value:
    """For each element the shares of the windows it is in."""
    column = [-1] + [1] * (-axis - 1)
    lengths = op.constant((cells.ends - cells.starts).reshape(column), grad.dtype)
    share = op.Div(grad, lengths)
    places = np.arange(cells.size)
    first = places * cells.count // cells.size
    last = -((places + 1) * -cells.count // cells.size) - 1
    parts = []
    for i in range(int((last - first).max()) + 1):
        index = op.constant(np.minimum(first + i, last), ir.DataType.INT64)
        part = op.Gather(share, index, axis=share.rank + axis)
        is_in = first + i <= last
        if not is_in.all():
            part = op.Where(op.constant(is_in.reshape(column), ir.DataType.BOOL), part, 0)
        parts.append(part)
    return functools.reduce(op.Add, parts)


def _adaptive_max(
    op: Recorder, x: Value, rank: int, output_size: Sequence[Any]
) -> tuple[Value, Value]:
    if _to_one(output_size):
        lead = [op.size(x, i) for i in range(x.rank - rank)]
        plane = product(op, spatial_sizes(op, x, rank))
        largest, where = largest_along(op, op.Reshape(x, op.vector([*lead, plane])), -1)
        shape = op.vector([*lead, *[1] * rank])
        return op.Reshape(largest, shape), op.Reshape(where, shape)
    cells = _cells(op, x, rank, output_size)
    if (windows := _equal_windows(cells)) is not None:
        value, place = max_pool(op, x, windows, indexed=True)
        assert place is not None
        return value, place
    value, place = x, planes(op, x, rank)
    for axis in reversed(range(-rank, 0)):
        parts: list[list[Value]] = [[], []]
        starts, ends = cells[axis].starts, cells[axis].ends
        for i in range(int((ends - starts).max())):
            # A short window repeats its last element, which changes nothing.
            index = op.constant(np.minimum(starts + i, ends - 1), ir.DataType.INT64)
            for found, source in zip(parts, (value, place), strict=True):
                found.append(op.Gather(source, index, axis=source.rank + axis))
        value, place = choose(op, *parts)
    return value, indices_of(op, value, place)


def _register(rank: int) -> None:
    names = [f"aten::adaptive_avg_pool{rank}d"]
    names += [f"aten::_adaptive_avg_pool{rank}d"] if rank > 1 else []

    @converter(*names)
    def average(op: Recorder, x: Value, output_size: Any) -> Value:
        """_adaptive_avg_pool2d(Tensor self, SymInt[2] output_size) -> Tensor"""
        mean = _adaptive_average(op, x, rank, output_size)
        return op.Add(mean, 0.0) if is_float(mean) else mean  # torch's sums begin with 0.0

    @converter(f"aten::adaptive_max_pool{rank}d")
    def maximum(op: Recorder, x: Value, output_size: Any) -> tuple[Value, Value]:
        """adaptive_max_pool2d(Tensor self, int[2] output_size) -> (Tensor, Tensor)"""
        return _adaptive_max(op, x, rank, output_size)

    if rank == 1:
        return  # torch computes its gradient as that of two axes

    @converter(f"aten::_adaptive_avg_pool{rank}d_backward")
    def average_backward(op: Recorder, grad_output: Value, x: Value) -> Value:
        """_adaptive_avg_pool2d_backward(Tensor grad_output, Tensor self) -> Tensor"""
        return _adaptive_average_backward(op, grad_output, x, rank)

    @converter(f"aten::adaptive_max_pool{rank}d_backward")
    def maximum_backward(op: Recorder, grad_output: Value, x: Value, indices: Value) -> Value:
        """adaptive_max_pool2d_backward(Tensor grad_output, Tensor self, Tensor indices) -> Tensor"""
        counts = grad_output.dims[-rank:]
        overlap = not _to_one(counts) and _equal_windows(_cells(op, x, rank, counts)) is None
        return scatter_gradient(op, grad_output, x, indices, rank, overlap=overlap)


for _rank in (1, 2, 3):
    _register(_rank)
