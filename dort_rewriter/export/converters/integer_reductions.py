"""Sums and products of integers, which wrap around as in torch.

NOTE: onnxruntime 1.32 computes ReduceSum and ReduceProd of integers in float64: digits beyond 2**53
are lost, and what is out of range is the largest integer. A MatMul with ones is exact, and faster.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
import torch

from dort_rewriter.export.converters.linear_algebra import product
from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.subgraphs import subgraph
from dort_rewriter.graph.values import Value


def integer_sum(op: Recorder, x: Value, axes: Sequence[int], keepdim: bool) -> Value:
    """The sum over some axes, of int64."""
    x = op.cast(x, ir.DataType.INT64)
    if not axes:
        return x
    rows, kept = _last(op, x, axes)
    count = op.size(rows, -1)
    ones = op.Expand(op.constant([[1]]), op.vector([count, 1]))
    return _shaped(op, product(op, rows, ones), kept, axes, x.rank, keepdim)


def _last(op: Recorder, x: Value, axes: Sequence[int]) -> tuple[Value, Sequence[Any]]:
    """A tensor of rank 2 or more whose last axis is all that is to be reduced, and the sizes of
    the others."""
    others = [i for i in range(x.rank) if i not in axes]
    kept = [op.size(x, i) for i in others]
    order = [*others, *axes]
    x = op.Transpose(x, perm=order) if order != sorted(order) else x
    if len(axes) == 1 and others:
        return x, kept
    sizes = [op.size(x, i) for i in range(len(others), x.rank)]
    numbers = [s for s in sizes if isinstance(s, int)]
    if len(numbers) == len(sizes):
        count: Any = math.prod(numbers)
    else:
        count = op.ReduceProd(op.vector(sizes), keepdims=1)
    return op.Reshape(x, op.vector([*(kept or [1]), count]), allowzero=1), kept


def _shaped(
    op: Recorder, x: Value, kept: Sequence[Any], axes: Sequence[int], rank: int, keepdim: bool
) -> Value:
    """A result with a last axis of one element, of the shape that torch gives it."""
    if not keepdim:
        return op.Squeeze(x, [-1]) if kept else op.Reshape(x, op.vector([]))
    sizes = iter(kept)
    return op.Reshape(
        x, op.vector([1 if i in axes else next(sizes) for i in range(rank)]), allowzero=1
    )


def integer_product(op: Recorder, x: Value, dim: int | None, keepdim: bool) -> Value:
    """The product over one axis or all of them, of int64."""
    x = op.cast(x, ir.DataType.INT64)
    if not x.rank:
        return x
    axis = 0 if dim is None else dim % x.rank
    flat = op.Reshape(x, [-1]) if dim is None and x.rank > 1 else x
    size = flat.dims[axis]
    if not isinstance(size, int):
        return _multiplied_in_turn(op, flat, axis, keepdim)
    while size > 1:
        half = size // 2
        halves = (op.Slice(flat, [i * half], [(i + 1) * half], [axis]) for i in range(2))
        both = op.Mul(*halves)
        odd = [op.Slice(flat, [2 * half], [size], [axis])] if size % 2 else []
        flat = op.Concat(both, *odd, axis=axis) if odd else both
        size -= half
    if not size:
        shape = [1 if i == axis else op.size(flat, i) for i in range(flat.rank)]
        flat = op.Expand(op.constant(1), op.vector(shape))
    return flat if keepdim else op.Squeeze(flat, [axis])


def _multiplied_in_turn(op: Recorder, x: Value, axis: int, keepdim: bool) -> Value:
    """One element after the other, where nobody knows how many there are."""
    meta = op.result.to(torch.int64)
    rows = op.Transpose(x, perm=[axis, *(i for i in range(x.rank) if i != axis)]) if axis else x
    rows = op.Unsqueeze(rows, [axis + 1]) if keepdim else rows
    start = op.Expand(op.constant(1), op.vector([op.size(rows, i) for i in range(1, rows.rank)]))
    rows = op.Concat(op.Unsqueeze(start, [0]), rows, axis=0)  # a Scan refuses to run over nothing

    def step(inner: Recorder, given: Sequence[Value]) -> Sequence[Any]:
        return [inner.Mul(*given)]

    body = subgraph(op, [meta, meta], step)
    found: Value = op.call("Scan", start, rows, body=body, num_scan_inputs=1)
    return found
