"""Reductions to sums, means, norms, extrema and truth values.

An empty list of dimensions means all of them. Integers and truth values are summed in int64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
import torch

from dort_rewriter.export.converters import own_kernels
from dort_rewriter.export.converters.axes import count_along
from dort_rewriter.export.converters.linear_algebra import product
from dort_rewriter.export.converters.opmath import (
    HALVES,
    cast_like,
    is_bool,
    is_float,
    store,
    widen,
)
from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import Refused, converter
from dort_rewriter.export.subgraphs import subgraph
from dort_rewriter.graph.shapes import may_be_zero
from dort_rewriter.graph.values import Value

Dims = int | Sequence[int] | None


def _axes(x: Value, dim: Dims) -> list[int]:
    """The axes to reduce, in order."""
    dims = [dim] if isinstance(dim, int) else list(dim or range(x.rank))
    return sorted(d % x.rank for d in dims) if x.rank else []


def reduce(op: Recorder, onnx_op: str, x: Value, dim: Dims = None, keepdim: bool = False) -> Value:
    """Record a reduction; a tensor of rank 0 is reduced too (the norm of -1 is 1)."""
    axes = _axes(x, dim)
    if len(axes) == x.rank:
        return op.call(onnx_op, x, keepdims=int(keepdim))
    return op.call(onnx_op, x, axes, keepdims=int(keepdim))


def _from_zero(sum_: Value) -> Value:
    """A sum of what is added to zero: ORT's sums of float64, and those of one element, begin with
    the first one, and give -0.0 of -0.0. Our kernels have the others."""
    return sum_ + 0.0 if sum_.dtype == ir.DataType.DOUBLE else sum_


def total(op: Recorder, x: Value, dim: Dims = None, keepdim: bool = False) -> Value:
    """Record a sum in the type of the result."""
    x = op.cast(x, op.dtype)
    axes = _axes(x, dim)
    if is_float(x) and axes and all(x.dims[axis] == 1 for axis in axes):
        return (x if keepdim else op.Squeeze(x, axes)) + 0.0
    if is_float(x):
        return _from_zero(reduce(op, "ReduceSum", x, dim, keepdim))
    return op.cast(_integer_sum(op, x, _axes(x, dim), keepdim), op.dtype)


@converter("aten::sum", "aten::sum.dim_IntList")
def sum_(
    op: Recorder, x: Value, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None
) -> Value:
    """sum.dim_IntList(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor"""
    if op.dtype == ir.DataType.BOOL:
        return _holds(op, x, dim or None, keepdim, everywhere=False)
    return total(op, x, dim, keepdim)


@converter("aten::nansum")
def nansum(
    op: Recorder, x: Value, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None
) -> Value:
    """nansum(Tensor self, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor"""
    known = op.Where(op.IsNaN(x), 0, x) if is_float(x) else x
    return total(op, known, dim, keepdim)


@converter("aten::mean", "aten::mean.dim")
def mean(
    op: Recorder, x: Value, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None
) -> Value:
    """mean.dim(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor"""
    return _from_zero(reduce(op, "ReduceMean", op.cast(x, op.dtype), dim, keepdim))


@converter("aten::prod", "aten::prod.dim_int")
def prod(
    op: Recorder, x: Value, dim: int | None = None, keepdim: bool = False, *, dtype: Any = None
) -> Value:
    """prod.dim_int(Tensor self, int dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor"""
    if op.dtype == ir.DataType.BOOL:
        return _holds(op, x, dim, keepdim, everywhere=True)
    x = op.cast(x, op.dtype)
    if is_float(x):
        return reduce(op, "ReduceProd", x, dim, keepdim)
    return op.cast(_integer_product(op, x, dim, keepdim), op.dtype)


def _variance(
    op: Recorder,
    x: Value,
    dim: Dims,
    correction: Any,
    keepdim: bool,
    *,
    root: bool = False,
    with_mean: bool = False,
) -> tuple[Value, ...]:
    """The variance, or its root, and the mean if it is asked for, as torch stores them."""
    halves = op.dtype in HALVES
    x = widen(op, x)
    axes, correction = _axes(x, dim), 1 if correction is None else correction
    is_known = not isinstance(correction, Value)
    if axes and is_known and op.takes_own(x):
        how = {"root": root, "with_mean": with_mean or halves}  # torch has a float mean of float32
        results = own_kernels.variance(op, x, axes, correction, **how)
    else:
        results = _two_passes(op, x, axes, correction, root)
    kept = [v for v in results[: 1 + with_mean] if v is not None]
    return tuple(store(op, v if keepdim or not axes else op.Squeeze(v, axes)) for v in kept)


def _two_passes(
    op: Recorder, x: Value, axes: list[int], correction: Any, root: bool
) -> tuple[Value, Value]:
    """The variance, or its root, and the mean, dimensions kept."""
    mean = reduce(op, "ReduceMean", x, axes, True)
    squares = reduce(op, "ReduceSumSquare", op.Sub(x, mean), axes, True)
    count = count_along(op, x, axes)
    if isinstance(count, int) and not isinstance(correction, Value):
        divisor: Any = float(max(0, count - correction))
    else:
        degrees = op.Sub(cast_like(op, count, x), cast_like(op, correction, x))
        divisor = op.Max(degrees, 0.0)
    variance = op.Div(squares, divisor)
    return op.Sqrt(variance) if root else variance, mean + (mean - mean)  # inf is NaN, as in torch


def _register_variance(name: str, *, root: bool, with_mean: bool) -> None:
    @converter(f"aten::{name}.correction")
    def convert(
        op: Recorder, x: Value, dim: Dims = None, *, correction: Any = None, keepdim: bool = False
    ) -> Value | tuple[Value, ...]:
        """var.correction(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool keepdim=False) -> Tensor"""
        found = _variance(op, x, dim, correction, keepdim, root=root, with_mean=with_mean)
        return found if with_mean else found[0]


for _name, _root in (("var", False), ("std", True)):
    _register_variance(_name, root=_root, with_mean=False)
    _register_variance(f"{_name}_mean", root=_root, with_mean=True)


@converter("aten::linalg_vector_norm")
def vector_norm(
    op: Recorder,
    x: Value,
    ord: Any = 2,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
) -> Value:
    """linalg_vector_norm(Tensor self, Scalar ord=2, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor"""
    if isinstance(ord, Value):
        raise Refused("an order known only at run time")
    x = widen(op, op.cast(x, op.dtype))
    axes = _axes(x, dim)
    if not x.rank and dim:  # its powers, as in torch, which asks the sizes of named dimensions
        x, dim, keepdim = op.Unsqueeze(x, [0]), [0], False
    elif ord != 0 and all(x.dims[axis] == 1 for axis in axes):  # no power of it, as in torch
        size = op.Abs(x)
        return store(op, size if keepdim or not axes else op.Squeeze(size, axes))
    if ord == 2 and x.dtype == ir.DataType.DOUBLE:  # ORT 1.19's ReduceL2 has float32's digits
        return op.Sqrt(reduce(op, "ReduceSumSquare", x, dim, keepdim))
    named = {1: "ReduceL1", 2: "ReduceL2"}.get(ord)
    if named is not None:
        return store(op, reduce(op, named, x, dim, keepdim))
    size = op.Abs(x)
    if math.isinf(ord):
        return store(op, extremum(op, "ReduceMax" if ord > 0 else "ReduceMin", size, dim, keepdim))
    if ord == 0:
        is_set = op.Cast(op.Not(op.Equal(x, 0)), to=x.dtype)
        return store(op, reduce(op, "ReduceSum", is_set, dim, keepdim))
    total = reduce(op, "ReduceSum", op.Pow(size, cast_like(op, float(ord), size)), dim, keepdim)
    return store(op, op.Pow(total, cast_like(op, 1 / ord, total)))


@converter("aten::logsumexp")
def logsumexp(op: Recorder, x: Value, dim: Dims, keepdim: bool = False) -> Value:
    """logsumexp(Tensor self, int[1] dim, bool keepdim=False) -> Tensor"""
    x = widen(op, op.cast(x, op.dtype))
    if 0 in x.dims:
        return store(op, reduce(op, "ReduceLogSumExp", x, dim, keepdim))
    if x.dtype == ir.DataType.DOUBLE or not any(may_be_zero(d) for d in x.dims):
        return store(op, _logsumexp(op, x, dim, keepdim))
    result = reduce(op, "ReduceLogSumExp", x, dim, keepdim)
    # NOTE: ORT loses a NaN beside an infinity.
    found = reduce(op, "ReduceSum", op.Cast(op.IsNaN(x), to=ir.DataType.INT32), dim, keepdim)
    return store(op, op.Where(op.Greater(found, 0), math.nan, result))


def _logsumexp(op: Recorder, x: Value, dim: Dims, keepdim: bool) -> Value:
    """The formula. NOTE: ORT's kernel for float64 overflows, and has no -inf; that for float32 may
    lose a NaN beside an infinity."""
    if any(may_be_zero(d) for d in x.dims):
        raise Refused("a logsumexp of float64 over what may have no elements")
    most = reduce(op, "ReduceMax", x, dim, True)
    most = op.Where(op.IsInf(most), 0.0, most)
    # NOTE: 1.19's Exp of float64 is never zero.
    powers = op.Where(op.Equal(x, -math.inf), 0.0, op.Exp(op.Sub(x, most)))
    total = reduce(op, "ReduceSum", powers, dim, keepdim)
    return op.Add(op.Log(total), most if keepdim else op.Reshape(most, op.Shape(total)))


def has_nan(op: Recorder, x: Value, dim: Dims, keepdim: bool) -> Value:
    """Tell where a reduction meets a NaN."""
    flags = op.cast(op.IsNaN(x), ir.DataType.INT32)
    return op.cast(reduce(op, "ReduceMax", flags, dim, keepdim), ir.DataType.BOOL)


def extremum(op: Recorder, onnx_op: str, x: Value, dim: Dims, keepdim: bool) -> Value:
    """The largest or smallest elements; a NaN wins, as in torch."""
    ordered = op.cast(x, ir.DataType.INT32) if is_bool(x) else x
    result = reduce(op, onnx_op, ordered, dim, keepdim)
    axes = _axes(x, dim)
    if any(x.dims[axis] == 0 for axis in axes):
        raise Refused("the extremum of nothing, which torch refuses")
    if any(may_be_zero(x.dims[axis]) for axis in axes):
        # An element of nothing, in which the run fails, as in torch: onnxruntime's is a number.
        for axis in sorted(axes, reverse=True):
            ordered = op.Gather(ordered, op.constant([0] if keepdim else 0), axis=axis)
        result = op.call(onnx_op.removeprefix("Reduce"), result, ordered)
    if not is_float(x):
        return op.cast(result, x.dtype or op.dtype)
    # NOTE: ORT keeps or loses a NaN by its position and the axis.
    return op.Where(has_nan(op, x, dim, keepdim), math.nan, result)


@converter("aten::amax", "aten::max")
def amax(op: Recorder, x: Value, dim: Dims = (), keepdim: bool = False) -> Value:
    """amax(Tensor self, int[1] dim=[], bool keepdim=False) -> Tensor"""
    return extremum(op, "ReduceMax", x, dim, keepdim)


@converter("aten::amin", "aten::min")
def amin(op: Recorder, x: Value, dim: Dims = (), keepdim: bool = False) -> Value:
    """amin(Tensor self, int[1] dim=[], bool keepdim=False) -> Tensor"""
    return extremum(op, "ReduceMin", x, dim, keepdim)


def _holds(op: Recorder, x: Value, dim: Dims, keepdim: bool, *, everywhere: bool) -> Value:
    """Count what decides: an element that is set for any, one that is not for all."""
    truth = op.cast(x, ir.DataType.BOOL)
    if dim == []:
        raise Refused("no dimension: the shape that torch records may not be the one it computes")
    decides = op.Not(truth) if everywhere else truth
    count = _integer_sum(op, decides, _axes(decides, dim), keepdim)
    found = op.cast(count, ir.DataType.BOOL)
    return op.cast(op.Not(found) if everywhere else found, op.dtype)


@converter("aten::any", "aten::any.dim", "aten::any.dims")
def any_(op: Recorder, x: Value, dim: Dims = None, keepdim: bool = False) -> Value:
    """any.dim(Tensor self, int dim, bool keepdim=False) -> Tensor"""
    return _holds(op, x, dim, keepdim, everywhere=False)


@converter("aten::all", "aten::all.dim", "aten::all.dims")
def all_(op: Recorder, x: Value, dim: Dims = None, keepdim: bool = False) -> Value:
    """all.dim(Tensor self, int dim, bool keepdim=False) -> Tensor"""
    return _holds(op, x, dim, keepdim, everywhere=True)


@converter("aten::count_nonzero", "aten::count_nonzero.dim_IntList")
def count_nonzero(op: Recorder, x: Value, dim: Dims = None) -> Value:
    """count_nonzero(Tensor self, int? dim=None) -> Tensor"""
    return _integer_sum(op, op.cast(x, ir.DataType.BOOL), _axes(x, dim), False)


# -- integers, which wrap around as in torch -----------------------------------------------------

# NOTE: onnxruntime 1.32 computes ReduceSum and ReduceProd of integers in float64: digits beyond
# 2**53 are lost, and what is out of range is the largest integer. A MatMul with ones is exact, and
# faster.


def _integer_sum(op: Recorder, x: Value, axes: Sequence[int], keepdim: bool) -> Value:
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


def _integer_product(op: Recorder, x: Value, dim: int | None, keepdim: bool) -> Value:
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
    """One element after the other, where the size is known at run time only."""
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
