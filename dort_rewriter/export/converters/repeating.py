"""The same elements again, or in another order along an axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from dort_rewriter.export.converters.axes import flatten
from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import converter
from dort_rewriter.graph.values import Value

_BEFORE_START = -(2**63)


@converter("aten::repeat")
def repeat(op: Recorder, x: Value, repeats: Sequence[Any]) -> Value:
    """repeat(Tensor self, SymInt[] repeats) -> Tensor"""
    new = len(repeats) - x.rank
    wide = op.Unsqueeze(x, list(range(new))) if new else x
    times = [1 if isinstance(r, int) and r == 1 else r for r in repeats]
    if all(isinstance(t, int) and t == 1 for t in times):
        return wide
    repeated = [i for i, t in enumerate(times) if not (isinstance(t, int) and t == 1)]
    if all(wide.dims[i] == 1 for i in repeated):
        return op.Expand(wide, op.vector(times))
    return op.Tile(wide, op.vector(times))


@converter("aten::flip")
def flip(op: Recorder, x: Value, dims: Sequence[int]) -> Value:
    """flip(Tensor self, int[] dims) -> Tensor"""
    axes = sorted({d % x.rank for d in dims}) if x.rank else []
    if not axes:
        return x
    n = len(axes)
    return op.Slice(x, [-1] * n, [_BEFORE_START] * n, axes, [-1] * n)


@converter("aten::roll")
def roll(op: Recorder, x: Value, shifts: Sequence[Any], dims: Sequence[int] = ()) -> Value:
    """roll(Tensor self, SymInt[1] shifts, int[1] dims=[]) -> Tensor"""
    if 0 in x.dims or x.rank == 0:
        return x
    if not dims:
        rolled = _roll(op, flatten(op, x), shifts[0], 0)
        return op.Reshape(rolled, op.sizes(x))
    for shift, dim in zip(shifts, dims, strict=True):
        x = _roll(op, x, shift, dim % x.rank)
    return x


def _roll(op: Recorder, x: Value, shift: Any, axis: int) -> Value:
    size = op.size(x, axis)
    if isinstance(size, int) and isinstance(shift, int):
        if shift % size == 0:
            return x
        cut = op.constant([size - shift % size])
    else:
        length = op.vector([size])
        cut = op.Sub(length, op.Mod(op.vector([shift]), length))
    end = op.Slice(x, cut, [2**63 - 1], [axis])
    return op.Concat(end, op.Slice(x, [0], cut, [axis]), axis=axis)


@converter("aten::repeat_interleave.Tensor")
def repeat_interleave(op: Recorder, repeats: Value, output_size: Any = None) -> Value:
    """repeat_interleave.Tensor(Tensor repeats, *, SymInt? output_size=None) -> Tensor

    Position j comes from the first element whose running total is above j.
    """
    ends = op.CumSum(op.cast(repeats, op.dtype), 0)
    length = output_size
    if length is None:
        length = op.cast(op.ReduceSum(op.cast(repeats, op.dtype), keepdims=0), ir.DataType.INT64)
    places = op.cast(op.Range(0, length, 1), op.dtype)
    passed = op.LessOrEqual(op.Unsqueeze(ends, [0]), op.Unsqueeze(places, [1]))
    return op.ReduceSum(op.cast(passed, op.dtype), [1], keepdims=0)
