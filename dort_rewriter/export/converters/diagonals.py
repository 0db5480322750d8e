"""Diagonals: read, written, embedded."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from dort_rewriter.export.converters.axes import from_front, pad_axes, result_dims, to_front
from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import converter
from dort_rewriter.graph.values import Value

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
        zero = op.constant([0], op.dtype).const_value
        return op.ConstantOfShape(
            op.vector([*(op.size(moved, i) for i in range(len(batch))), op.result.shape[-1]]),
            value=zero,
        )
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
