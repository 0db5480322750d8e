"""Elements written by index along one axis, with and without a reduction.

NOTE: indices that meet an element twice go through ScatterElements: ScatterND with a reduction
loses some of them (onnxruntime runs it in parallel, unguarded).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from dort_rewriter.export.converters.axes import (
    at_least_1d,
    flatten,
    refuse_negative,
    result_dims,
    zeros,
)
from dort_rewriter.export.converters.opmath import HALVES
from dort_rewriter.export.converters.own_kernels import write_rows
from dort_rewriter.export.converters.slicing import SINCE, is_run, write_run
from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import Arguments, by_name, converter
from dort_rewriter.graph.values import Value

_ONNX_REDUCTIONS = {"none": "none", "add": "add", "sum": "add", "multiply": "mul", "prod": "mul"}
_ONNX_REDUCTIONS.update({"amax": "max", "amin": "min"})


def scatter(
    op: Recorder, x: Value, dim: int, places: Value, source: Value, reduction: str = "none"
) -> Value:
    """Write (or reduce into) `x` at `places` along an axis; 0-d values are taken as one element.

    NOTE: onnxruntime fails at run time on half floats and bools with a reduction.
    """
    if 0 in places.dims:
        return x
    data, index, updates = (at_least_1d(op, v) for v in (x, places, source))
    wrong = [i for i, (a, b) in enumerate(zip(index.dims, updates.dims, strict=True)) if a != b]
    if wrong:  # torch reads the first elements only
        updates = op.Slice(updates, [0] * len(wrong), op.sizes(index, wrong), wrong)
    dtype = x.dtype
    assert dtype is not None
    wider = dtype
    if reduction != "none" and (dtype in HALVES or dtype == ir.DataType.BOOL):
        wider = ir.DataType.FLOAT if dtype in HALVES else ir.DataType.INT32
    result = op.ScatterElements(
        op.cast(data, wider),
        index,
        op.cast(updates, wider),
        axis=dim % data.rank,
        reduction=None if reduction == "none" else reduction,
    )
    result = op.cast(result, dtype)
    return op.Squeeze(result, [0]) if x.rank == 0 else result


def add_at(op: Recorder, x: Value, places: Value, source: Value, axis: int) -> Value:
    """Add to `x` at `places` along an axis."""
    return scatter(op, x, axis, places, source, "add")


def _filled(op: Recorder, places: Value, value: Any) -> Value:
    """A value in the shape of the indices."""
    return op.Expand(op.cast(value, op.dtype), op.sizes(places))


@converter("aten::scatter.src", "aten::scatter.reduce")
def scatter_src(
    op: Recorder, x: Value, dim: int, index: Value, src: Value, *, reduce: str = "none"
) -> Value:
    """scatter.reduce(Tensor self, int dim, Tensor index, Tensor src, *, str reduce) -> Tensor"""
    return scatter(op, x, dim, refuse_negative(op, index), src, _ONNX_REDUCTIONS[reduce])


@converter("aten::scatter.value", "aten::scatter.value_reduce")
def scatter_value(
    op: Recorder, x: Value, dim: int, index: Value, value: Any, *, reduce: str = "none"
) -> Value:
    """scatter.value_reduce(Tensor self, int dim, Tensor index, Scalar value, *, str reduce) -> Tensor"""
    return scatter_src(op, x, dim, index, _filled(op, index, value), reduce=reduce)


@converter("aten::scatter_add")
def scatter_add(op: Recorder, x: Value, dim: int, index: Value, src: Value) -> Value:
    """scatter_add(Tensor self, int dim, Tensor index, Tensor src) -> Tensor"""
    return scatter_src(op, x, dim, index, src, reduce="add")


@converter("aten::scatter_reduce.two")
@by_name
def scatter_reduce(op: Recorder, given: Arguments) -> Value:
    """scatter_reduce.two(Tensor self, int dim, Tensor index, Tensor src, str reduce, *, bool include_self=True) -> Tensor"""
    return _reduce(op, given, refuse_negative(op, given.index), given.src)


def _reduce(op: Recorder, given: Arguments, index: Value, src: Value) -> Value:
    x, dim, reduce = given.x, given.dim, given.reduce
    if 0 in index.dims:
        return x
    start = x
    if not given.include_self:
        start = scatter(op, x, dim, index, _filled(op, index, _neutral(op, reduce)))
    if reduce == "mean":
        return _mean(op, start, dim, index, src, given.include_self)
    result = scatter(op, start, dim, index, src, _ONNX_REDUCTIONS[reduce])
    if reduce in ("amax", "amin") and op.dtype.is_floating_point():
        return _spread_nan(op, result, start, dim, index, src)
    return result


def _neutral(op: Recorder, reduce: str) -> Any:
    """What a reduction starts from."""
    if reduce not in ("amax", "amin"):
        return 1 if reduce == "prod" else 0
    if op.dtype.is_floating_point():
        return -np.inf if reduce == "amax" else np.inf
    if op.dtype == ir.DataType.BOOL:
        return reduce == "amin"
    limits = np.iinfo(op.dtype.numpy())
    return limits.min if reduce == "amax" else limits.max


def _mean(
    op: Recorder, start: Value, dim: int, index: Value, src: Value, include_self: bool
) -> Value:
    total = scatter(op, start, dim, index, src, "add")
    ones = _filled(op, index, 1)
    first = op.Expand(op.constant(int(include_self), op.dtype), op.sizes(start))
    count = op.Max(scatter(op, first, dim, index, ones, "add"), 1)
    if op.dtype.is_floating_point():
        return op.Div(total, count)
    # Down, as torch does, where ONNX cuts towards zero.
    lowered = op.Where(op.Less(total, 0), op.Sub(total, op.Sub(count, 1)), total)
    return op.Div(lowered, count)


def _spread_nan(
    op: Recorder, result: Value, start: Value, dim: int, index: Value, src: Value
) -> Value:
    """Let a NaN win over every number: onnxruntime's reduction forgets the ones it met first."""
    flags = [op.cast(op.IsNaN(v), ir.DataType.INT32) for v in (start, src)]
    met = scatter(op, flags[0], dim, index, flags[1], "max")
    return op.Where(op.Greater(met, 0), op.constant(np.nan, op.dtype), result)


def _along(op: Recorder, dim: int, index: Value, source: Value) -> tuple[Value, Value]:
    """A 1-D index in the shape of the source it belongs to, and the source."""
    source, index = at_least_1d(op, source), refuse_negative(op, index)
    shape = [1] * source.rank
    shape[dim % source.rank] = -1
    return op.Expand(op.Reshape(index, shape), op.sizes(source)), source


@converter("aten::index_add")
def index_add(
    op: Recorder, x: Value, dim: int, index: Value, source: Value, *, alpha: Any = 1
) -> Value:
    """index_add(Tensor self, int dim, Tensor index, Tensor source, *, Scalar alpha=1) -> Tensor"""
    if 0 in source.dims:
        return x
    places, updates = _along(op, dim, index, source)
    if not (isinstance(alpha, int | float) and alpha == 1):
        if op.dtype == ir.DataType.BOOL:
            updates = op.And(updates, op.cast(alpha, op.dtype))
        else:
            updates = op.Mul(updates, op.cast(alpha, op.dtype))
    return scatter(op, x, dim, places, updates, "add")


@converter("aten::index_copy")
def index_copy(op: Recorder, x: Value, dim: int, index: Value, source: Value) -> Value:
    """index_copy(Tensor self, int dim, Tensor index, Tensor source) -> Tensor"""
    if 0 in source.dims:
        return x
    if x.rank and source.rank == x.rank and op.takes_own(x, source):
        return write_rows(op, x, index, source, dim % x.rank)
    if (
        op.opset >= SINCE
        and source.rank == x.rank > 1
        and dim % x.rank
        and is_run(op.fx_node.args[2])
    ):
        first = op.Slice(op.Reshape(index, [-1]), [0], [1], [0])
        return write_run(op, x, source, first, dim % x.rank)
    places, updates = _along(op, dim, index, source)
    return scatter(op, x, dim, places, updates)


@converter("aten::index_reduce")
@by_name
def index_reduce(op: Recorder, given: Arguments) -> Value:
    """index_reduce(Tensor self, int dim, Tensor index, Tensor source, str reduce, *, bool include_self=True) -> Tensor"""
    if 0 in given.source.dims:
        return given.x
    return _reduce(op, given, *_along(op, given.dim, given.index, given.source))


@converter("aten::index_fill.int_Scalar", "aten::index_fill.int_Tensor")
def index_fill(op: Recorder, x: Value, dim: int, index: Value, value: Any) -> Value:
    """index_fill.int_Scalar(Tensor self, int dim, Tensor index, Scalar value) -> Tensor"""
    if 0 in index.dims or 0 in x.dims:
        return x
    filler = op.cast(value, op.dtype)
    if x.rank == 0:
        return filler
    axis = dim % x.rank
    places = flatten(op, index)
    none = op.Expand(op.constant(False), op.vector([op.size(x, axis)]))
    hit = op.ScatterElements(none, places, op.Expand(op.constant(True), op.sizes(places)), axis=0)
    shape = [1] * x.rank
    shape[axis] = -1
    return op.Where(op.Reshape(hit, shape), filler, x)


@converter("aten::put")
def put(op: Recorder, x: Value, index: Value, source: Value, accumulate: bool = False) -> Value:
    """put(Tensor self, Tensor index, Tensor source, bool accumulate=False) -> Tensor"""
    if 0 in index.dims:
        return x
    reduction = "add" if accumulate else "none"
    flat, places, updates = (flatten(op, v) for v in (x, index, source))
    return op.Reshape(scatter(op, flat, 0, places, updates, reduction), op.sizes(x))


@converter("aten::masked_scatter_backward")
def masked_scatter_backward(op: Recorder, grad_output: Value, mask: Value, sizes: Any) -> Value:
    """masked_scatter_backward(Tensor grad_output, Tensor mask, SymInt[] sizes) -> Tensor

    The gradients of the true elements, in order, then zeros; the others go to a place of their own.
    """
    if 0 in grad_output.dims or 0 in result_dims(op):
        return zeros(op, sizes)
    shape = op.sizes(grad_output)
    where = flatten(op, op.Expand(op.cast(mask, ir.DataType.BOOL), shape))
    order = op.Sub(op.CumSum(op.cast(where, ir.DataType.INT64), 0), 1)
    length = op.ReduceProd(op.vector(sizes), keepdims=1)
    places = op.Where(where, order, length)
    wide = zeros(op, op.Add(length, 1))
    found = op.ScatterElements(wide, places, flatten(op, grad_output), axis=0)
    return op.Reshape(op.Slice(found, [0], length, [0]), op.vector(sizes))
