"""Runs of equal elements, and elements that occur once or more.

ONNX's Unique is not taken for floats: in ONNX Runtime a NaN equals what it meets first.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from dort_rewriter.export.converters.axes import flatten
from dort_rewriter.export.converters.opmath import is_float
from dort_rewriter.export.converters.ordering import sort_stable
from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import Refused, converter
from dort_rewriter.graph.values import Value

_D = ir.DataType
_COMPARED = (_D.INT8, _D.INT16, _D.UINT8, _D.UINT16, _D.BOOL)
"""Element types that ONNX Runtime compares, or sorts, as int32 only."""


@converter("aten::unique_consecutive")
def unique_consecutive(
    op: Recorder,
    x: Value,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> tuple[Value, Value, Value]:
    """unique_consecutive(Tensor self, bool return_inverse=False, bool return_counts=False, int? dim=None) -> (Tensor, Tensor, Tensor)"""
    if dim is not None and x.rank > 0:
        axis = dim % x.rank
        starts = _starts(op, x, axis, _check_slices(x, axis))
        found = op.Compress(x, starts, axis=axis)
        return found, _numbers(op, starts), _lengths(op, starts)
    flat = flatten(op, x)
    starts = _starts(op, flat)
    nothing = op.constant([], ir.DataType.INT64)
    inverse = op.Reshape(_numbers(op, starts), op.Shape(x)) if return_inverse else nothing
    counts = _lengths(op, starts) if return_counts else nothing
    return op.Compress(flat, starts, axis=0), inverse, counts


@converter("aten::_unique2")
def unique2(
    op: Recorder,
    x: Value,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
) -> tuple[Value, Value, Value]:
    """_unique2(Tensor self, bool sorted=True, bool return_inverse=False, bool return_counts=False) -> (Tensor, Tensor, Tensor)"""
    flat = flatten(op, x)
    ordered, order = sort_stable(op, _comparable(op, flat), stable=True, dim=0)
    starts = _starts(op, ordered)
    nothing = op.constant([], ir.DataType.INT64)
    inverse = nothing
    if return_inverse:
        numbers = op.ScatterElements(order, order, _numbers(op, starts), axis=0)
        inverse = op.Reshape(numbers, op.Shape(x))
    counts = _lengths(op, starts) if return_counts else nothing
    return op.cast(op.Compress(ordered, starts, axis=0), x.dtype or op.dtype), inverse, counts


@converter("aten::unique_dim")
def unique_dim(
    op: Recorder,
    x: Value,
    dim: int,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
) -> tuple[Value, Value, Value]:
    """unique_dim(Tensor self, int dim, bool sorted=True, bool return_inverse=False, bool return_counts=False) -> (Tensor, Tensor, Tensor)"""
    if x.rank == 0:
        raise Refused("slices of what has no axes")
    _check_slices(x, dim % x.rank)
    # Slices stand in the order of the places that their elements have among all elements.
    places = unique2(op, x, return_inverse=True)[1] if is_float(x) else op.cast(x, _D.INT64)
    found = op.Unique(places, axis=dim % x.rank, sorted=1, outputs=4)
    return op.Gather(x, found[1], axis=dim % x.rank), found[2], found[3]


def _comparable(op: Recorder, x: Value) -> Value:
    return op.Cast(x, to=_D.INT32) if x.dtype in _COMPARED else x


def _starts(op: Recorder, x: Value, axis: int = 0, rest: Sequence[int] = ()) -> Value:
    """Where a run of equal slices begins, whose elements lie along `rest`.

    A NaN equals nothing, itself included: it is a run of its own.
    """
    compared = _comparable(op, x)
    after = op.Slice(compared, [1], [2**62], [axis])
    before = op.Slice(compared, [0], [-1], [axis])
    others = op.Not(op.Equal(after, before))
    if rest:
        different = op.ReduceSum(op.Cast(others, to=_D.INT64), list(rest), keepdims=0)
        others = op.Greater(different, 0)
    # Nothing has no first element.
    count = op.Shape(x, start=axis, end=axis + 1)
    return op.Slice(op.Concat(op.constant([True]), others, axis=0), [0], count, [0])


def _check_slices(x: Value, axis: int) -> list[int]:
    """The axes of slices; those without elements are refused, as eager mode does."""
    rest = [i for i in range(x.rank) if i != axis]
    if any(x.dims[i] == 0 for i in rest):
        raise Refused("slices that have no elements")
    return rest


def _numbers(op: Recorder, starts: Value) -> Value:
    """The number of the run in which each element is."""
    return op.Sub(op.CumSum(op.Cast(starts, to=_D.INT64), 0), 1)


def _lengths(op: Recorder, starts: Value) -> Value:
    places = op.Reshape(op.NonZero(starts), [-1])
    ends = op.Slice(op.Concat(places, op.Shape(starts), axis=0), [1], [2**62], [0])
    # Nothing has no runs, but an end.
    return op.Sub(op.Slice(ends, [0], op.Shape(places), [0]), places)
