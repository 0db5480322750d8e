"""Elements moved: several tensors into one, one into several, gathered, repeated, on diagonals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from dort_rewriter.export.converters.axes import (
    at_least_1d,
    flatten,
    from_front,
    pad_axes,
    refuse_negative,
    result_dims,
    to_front,
    zeros,
)
from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import converter
from dort_rewriter.graph.values import Value


@converter("aten::cat")
def cat(op: Recorder, tensors: Sequence[Value], dim: int = 0) -> Value:
    """cat(Tensor[] tensors, int dim=0) -> Tensor

    torch lets a 1-D tensor without elements stand beside tensors of any rank: it adds nothing.
    """
    full = [t for t in tensors if list(t.dims) != [0]] or list(tensors[:1])
    parts = [op.cast(t, op.dtype) for t in full]
    axis = dim % parts[0].rank
    with_elements = [p for p in parts if p.dims[axis] != 0] or parts[:1]
    return op.Concat(*with_elements, axis=axis)


@converter(
    "aten::split_with_sizes", "aten::split_with_sizes_copy", "aten::unsafe_split_with_sizes"
)
def split_with_sizes(
    op: Recorder, x: Value, split_sizes: Sequence[Any], dim: int = 0
) -> Sequence[Value]:
    """split_with_sizes(Tensor(a -> *) self, SymInt[] split_sizes, int dim=0) -> Tensor(a)[]"""
    return _split(op, x, split_sizes, dim % x.rank)


@converter("aten::split.Tensor", "aten::split_copy.Tensor", "aten::unsafe_split.Tensor")
def split(op: Recorder, x: Value, split_size: Any, dim: int = 0) -> Sequence[Value]:
    """split.Tensor(Tensor(a -> *) self, SymInt split_size, int dim=0) -> Tensor(a)[]"""
    axis = dim % x.rank
    full = len(op.result) - 1
    size = op.size(x, axis)
    if isinstance(split_size, int):
        done = op.constant([full * split_size])
    else:
        done = op.Mul(op.vector([split_size]), [full])
    rest: int | Value = (
        size - full * split_size
        if isinstance(size, int) and isinstance(split_size, int)
        else op.Sub(op.vector([size]), done)
    )
    return _split(op, x, [*([split_size] * full), rest], axis)


@converter("aten::unbind.int", "aten::unbind_copy.int")
def unbind(op: Recorder, x: Value, dim: int = 0) -> Sequence[Value]:
    """unbind.int(Tensor(a -> *) self, int dim=0) -> Tensor(a)[]"""
    axis = dim % x.rank
    return [op.Squeeze(part, [axis]) for part in _split(op, x, [1] * len(op.result), axis)]


def _split(op: Recorder, x: Value, sizes: Sequence[Any], axis: int) -> Sequence[Value]:
    if not sizes:
        return []
    if len(sizes) == 1:
        return [x]
    return op.call("Split", x, op.vector(sizes), axis=axis, outputs=len(sizes))


@converter("aten::gather")
def gather(op: Recorder, x: Value, dim: int, index: Value, *, sparse_grad: bool = False) -> Value:
    """gather(Tensor self, int dim, Tensor index, *, bool sparse_grad=False) -> Tensor"""
    if 0 in index.dims:  # its rank may be another than that of the data
        return zeros(op, op.sizes(index))
    data, places = at_least_1d(op, x), at_least_1d(op, refuse_negative(op, index))
    found = op.GatherElements(data, places, axis=dim % data.rank)
    return op.Squeeze(found, [0]) if index.rank == 0 else found


@converter("aten::index_select")
def index_select(op: Recorder, x: Value, dim: int, index: Value) -> Value:
    """index_select(Tensor self, int dim, Tensor index) -> Tensor"""
    if x.rank == 0:
        return x
    return op.Gather(x, at_least_1d(op, refuse_negative(op, index)), axis=dim % x.rank)


@converter("aten::take")
def take(op: Recorder, x: Value, index: Value) -> Value:
    """take(Tensor self, Tensor index) -> Tensor"""
    return op.Gather(flatten(op, x), index, axis=0)


def _has_axes(node: torch.fx.Node) -> bool:
    """nonzero is taken for tensors with at least one axis"""
    value: torch.Tensor = node.args[0].meta["val"]  # type: ignore[union-attr]
    return value.ndim > 0


@converter("aten::nonzero", when=_has_axes)
def nonzero(op: Recorder, x: Value) -> Value:
    """nonzero(Tensor self) -> Tensor"""
    return op.Transpose(op.NonZero(x), perm=[1, 0])


@converter("aten::nonzero_static")
def nonzero_static(op: Recorder, x: Value, *, size: Any, fill_value: int = -1) -> Value:
    """nonzero_static(Tensor self, *, SymInt size, int fill_value=-1) -> Tensor"""
    if x.rank == 0:
        return op.Expand(op.constant(0, op.dtype), op.vector([size, 0]))
    found = op.Transpose(op.NonZero(x), perm=[1, 0])
    filler = op.Expand(op.constant(fill_value, op.dtype), op.vector([size, x.rank]))
    return op.Slice(op.Concat(found, filler, axis=0), [0], op.vector([size]), [0])


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


_STORED = 4096
"""Elements up to which a mask is a constant."""


@converter("aten::diagonal", "aten::diagonal_copy")
def diagonal(op: Recorder, x: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    """diagonal(Tensor(a) self, int offset=0, int dim1=0, int dim2=1) -> Tensor(a)

    Row i and column i + offset, in a flat matrix: a slice with a step of a row plus one.
    """
    axes = [dim1 % x.rank, dim2 % x.rank]
    batch = [i for i in range(x.rank) if i not in axes]
    moved = op.Transpose(x, perm=[*batch, *axes])
    rows, columns = op.size(moved, -2), op.size(moved, -1)
    if 0 in result_dims(op) or 0 in x.dims:
        return zeros(op, [*(op.size(moved, i) for i in range(len(batch))), op.result.shape[-1]])
    flat = op.Reshape(moved, op.vector([*([0] * len(batch)), -1]))
    width, height = op.vector([columns]), op.vector([rows])
    start = op.vector([offset]) if offset >= 0 else op.Mul(width, -offset)
    last_row = op.Min(op.Sub(width, [offset]), height)
    return op.Slice(flat, start, op.Mul(last_row, width), [len(batch)], op.Add(width, 1))


@converter("aten::diag_embed")
def diag_embed(op: Recorder, x: Value, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Value:
    """diag_embed(Tensor self, int offset=0, int dim1=-2, int dim2=-1) -> Tensor"""
    rank = x.rank + 1
    before, after = max(-offset, 0), max(offset, 0)
    rows = _pad(op, x, [before, after])
    side = op.size(rows, -1)
    mask = _mask(op, side, side, offset)
    filled = op.Where(mask, op.Unsqueeze(rows, [x.rank]), op.constant(0, op.dtype))
    axes = [dim1 % rank, dim2 % rank]
    batch = [i for i in range(rank) if i not in axes]
    order = [*batch, *axes]
    return op.Transpose(filled, perm=[order.index(i) for i in range(rank)])


@converter("aten::diagonal_scatter")
def diagonal_scatter(
    op: Recorder, x: Value, src: Value, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Value:
    """diagonal_scatter(Tensor self, Tensor src, int offset=0, int dim1=0, int dim2=1) -> Tensor"""
    if 0 in src.dims:
        return x
    axes, src = [dim1 % x.rank, dim2 % x.rank], op.cast(src, op.dtype)
    moved = to_front(op, x, axes)  # rows, columns, batch; the source: batch, diagonal
    rows, columns = op.size(moved, 0), op.size(moved, 1)
    before = max(-offset, 0)
    after = op.Sub(op.Sub(op.vector([rows]), [before]), op.vector([op.size(src, src.rank - 1)]))
    source = op.Unsqueeze(to_front(op, _pad(op, src, [before, after]), [src.rank - 1]), [1])
    mask = _mask(op, rows, columns, offset)
    mask = op.Unsqueeze(mask, list(range(2, x.rank))) if x.rank > 2 else mask
    return from_front(op, op.Where(mask, source, moved), axes)


def _pad(op: Recorder, x: Value, pads: list[int | Value]) -> Value:
    """Put zeros around the last axis."""
    amounts = op.vector(pads)
    if amounts.const_value is not None and not amounts.const_value.numpy().any():
        return x
    return pad_axes(op, x, pads, [-1])


def _mask(op: Recorder, rows: int | Value, columns: int | Value, offset: int) -> Value:
    """Where the diagonal is in a matrix."""
    if isinstance(rows, int) and isinstance(columns, int) and rows * columns <= _STORED:
        return op.constant(np.eye(rows, columns, offset, dtype=bool), ir.DataType.BOOL)
    i, j = (op.Range(0, op.Squeeze(op.vector([n]), [0]), 1) for n in (rows, columns))
    return op.Equal(op.Add(op.Unsqueeze(i, [1]), offset), op.Unsqueeze(j, [0]))
