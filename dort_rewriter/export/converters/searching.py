"""Where values belong among sorted edges, by the binary search that torch makes: around a NaN
among the edges its steps decide, and it holds no number for each pair of a value and an edge.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from dort_rewriter.export.converters.opmath import has_any
from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import Refused, converter
from dort_rewriter.export.subgraphs import loop
from dort_rewriter.graph.values import Value


@converter("aten::searchsorted.Tensor")
def searchsorted(
    op: Recorder,
    sorted_sequence: Value,
    x: Value,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Value | None = None,
) -> Value:
    """searchsorted.Tensor(Tensor sorted_sequence, Tensor self, *, bool out_int32=False, bool right=False, str? side=None, Tensor? sorter=None) -> Tensor"""
    if sorted_sequence.dtype != x.dtype:
        raise Refused("a sequence and values of two types")
    edges = sorted_sequence
    if sorter is not None:
        edges = op.GatherElements(edges, sorter, axis=-1)
    none = op.Expand(op.constant(0, ir.DataType.INT64), op.sizes(x))
    if 0 in x.dims or 0 in edges.dims:
        return op.cast(none, op.dtype)
    compare = "Greater" if right or side == "right" else "GreaterOrEqual"
    size = op.size(edges, edges.rank - 1)
    first, last = none, op.Add(none, op.Squeeze(op.vector([size]), [0]))
    if isinstance(size, int):
        for _ in range(size.bit_length()):
            first, last = _halve(op, edges, x, first, last, compare)
    else:
        first = _loop(op, edges, x, first, last, compare)
    return op.cast(first, op.dtype)


def _halve(
    op: Recorder, edges: Value, x: Value, first: Value, last: Value, compare: str
) -> tuple[Value, Value]:
    """One step: the half of the edges from `first` to `last` where each value belongs."""
    middle = op.Div(op.Add(first, last), 2)
    is_open = op.Less(first, last)
    # NOTE: what is found already may be behind the last edge.
    place = op.Where(is_open, middle, 0)
    edge = op.Gather(edges, place) if edges.rank == 1 else op.GatherElements(edges, place, axis=-1)
    is_later = op.And(is_open, op.Not(op.call(compare, edge, x)))
    return op.Where(is_later, op.Add(middle, 1), first), op.Where(is_later, last, middle)


def _loop(op: Recorder, edges: Value, x: Value, first: Value, last: Value, compare: str) -> Value:
    """The same for a number of edges that is known at run time."""
    meta = op.result.long()

    def step(inner: Recorder, given: Sequence[Value]) -> Sequence[Any]:
        halves = _halve(inner, edges, x, given[0], given[1], compare)
        return [has_any(inner, inner.Less(*halves)), *halves]

    goes_on = has_any(op, op.Less(first, last))
    return loop(op, goes_on, [first, last], [meta, meta], step)[0]


@converter("aten::bucketize.Tensor")
def bucketize(
    op: Recorder, x: Value, boundaries: Value, *, out_int32: bool = False, right: bool = False
) -> Value:
    """bucketize.Tensor(Tensor self, Tensor boundaries, *, bool out_int32=False, bool right=False) -> Tensor"""
    if boundaries.rank != 1:
        raise Refused("boundaries of several rows, which torch refuses")
    return searchsorted(op, boundaries, x, right=right)


@converter("aten::histc")
def histc(op: Recorder, x: Value, bins: int = 100, min: Any = 0, max: Any = 0) -> Value:
    """histc(Tensor self, int bins=100, Scalar min=0, Scalar max=0) -> Tensor

    As torch rounds: torchlib compares with edges, and has another bin near one.
    """
    if isinstance(min, Value) or isinstance(max, Value) or min >= max or 0 in x.dims:
        raise Refused("bins between the least and the largest number")
    low, high, flat = float(min), float(max), op.Reshape(x, op.constant([-1]))
    inside = op.And(op.GreaterOrEqual(flat, low), op.LessOrEqual(flat, high))
    share = op.Mul(op.Sub(flat, low), float(bins))
    place = op.cast(op.Div(share, op.Sub(op.constant(high, x.dtype), low)), ir.DataType.INT64)
    place = op.Where(inside, op.Min(place, op.constant(bins - 1, ir.DataType.INT64)), 0)
    none = op.Expand(op.constant(0, ir.DataType.INT64), op.constant([bins]))
    marks = op.cast(inside, ir.DataType.INT64)
    return op.cast(op.ScatterElements(none, place, marks, axis=0, reduction="add"), op.dtype)
