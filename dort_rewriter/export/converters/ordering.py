"""Positions of extrema, sorting, and order statistics.

torch takes NaN for greater than every number, infinity included; ORT's TopK leaves the order
undefined around a NaN. So keys are sorted, in a type that has room for one more above infinity.
Of equal elements ORT takes the first; torch does so where its documentation promises nothing else,
in extrema, medians and stable sorts, and elsewhere what its algorithms happen to take: ``Order``,
a kernel of ours, does what they do.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import onnx_ir as ir

from dort_rewriter.export.converters import own_kernels
from dort_rewriter.export.converters.cumulative import has_known_size, running_maximum
from dort_rewriter.export.converters.opmath import check_dimension, is_bool, is_float
from dort_rewriter.export.converters.reductions import extremum, has_nan
from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import Refused, converter
from dort_rewriter.graph.values import Value
from dort_rewriter.kernels.operators import OWN_MOST_AXES


def _comparable(op: Recorder, x: Value) -> Value:
    return op.cast(x, ir.DataType.INT32) if is_bool(x) else x


_ABOVE_FLOAT32 = 1e300


def _best(
    op: Recorder, x: Value, count: Value, axis: int, *, largest: bool
) -> tuple[Value, Value]:
    """The `count` first elements of an order, and where they were; ties keep their order."""
    options: dict[str, int] = {"axis": axis, "largest": int(largest), "sorted": 1}
    if not is_float(x):
        values, indices = op.TopK(_comparable(op, x), count, **options)
        return op.cast(values, x.dtype or op.dtype), indices
    if x.dtype != ir.DataType.DOUBLE:
        key = op.cast(x, ir.DataType.DOUBLE)
        key = op.Where(op.Equal(key, math.inf), _ABOVE_FLOAT32, key)
        key = op.Where(op.IsNaN(x), math.inf, key)
        indices = op.TopK(key, count, **options)[1]
    else:  # no type has room: sorted by the numbers, then by whether they are some
        everything = op.sizes(x, [axis])
        key = op.Where(op.IsNaN(x), math.inf, x)
        order = op.TopK(key, everything, **options)[1]
        is_nan = op.cast(op.IsNaN(op.GatherElements(x, order, axis=axis)), ir.DataType.INT32)
        indices = op.GatherElements(order, op.TopK(is_nan, count, **options)[1], axis=axis)
    return op.GatherElements(x, indices, axis=axis), indices


def _first(
    op: Recorder, x: Value, count: Value, axis: int, *, largest: bool, **how: bool
) -> tuple[Value, Value]:
    """The same, but of equal elements those first that torch chooses, where a kernel of ours can."""
    if not op.own_kernels or x.rank > OWN_MOST_AXES or 0 in x.dims:
        return _best(op, x, count, axis, largest=largest)
    indices = own_kernels.order(op, x, count, axis, largest=largest, **how)
    return op.GatherElements(x, indices, axis=axis), indices


def _arg(op: Recorder, onnx_op: str, x: Value, dim: int | None, keepdim: bool) -> Value:
    """The position of the first extremum."""
    if x.rank == 0:
        return op.cast(0, ir.DataType.INT64)
    if dim is None:
        index = _arg(op, onnx_op, op.Reshape(x, [-1]), 0, False)
        return op.Reshape(index, [1] * x.rank) if keepdim else index
    axis = dim % x.rank
    if x.dtype == ir.DataType.INT64:  # ORT 1.19 has no ArgMax for it; TopK finds the first too
        index = op.TopK(x, [1], axis=axis, largest=int(onnx_op == "ArgMax"))[1]
        return index if keepdim else op.Squeeze(index, [axis])
    index = op.call(onnx_op, _comparable(op, x), axis=axis, keepdims=int(keepdim))
    if not is_float(x):
        return index
    first_nan = op.ArgMax(
        op.cast(op.IsNaN(x), ir.DataType.INT32), axis=axis, keepdims=int(keepdim)
    )
    return op.Where(has_nan(op, x, axis, keepdim), first_nan, index)


def _register_extremum(name: str) -> None:
    @converter(f"aten::arg{name.lower()}")
    def position(op: Recorder, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
        """argmax(Tensor self, int? dim=None, bool keepdim=False) -> Tensor"""
        return _arg(op, f"Arg{name}", x, dim, keepdim)

    @converter(f"aten::{name.lower()}.dim")
    def both(op: Recorder, x: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
        """max.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)"""
        values = extremum(op, f"Reduce{name}", x, dim, keepdim)
        return values, _arg(op, f"Arg{name}", x, dim, keepdim)


for _name in ("Max", "Min"):
    _register_extremum(_name)


@converter("aten::topk")
def topk(
    op: Recorder, x: Value, k: Any, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Value, Value]:
    """topk(Tensor self, SymInt k, int dim=-1, bool largest=True, bool sorted=True) -> (Tensor values, Tensor indices)"""
    if x.rank == 0:
        return x, op.cast(0, ir.DataType.INT64)
    return _first(op, x, op.vector([k]), dim % x.rank, largest=largest, sorted=sorted)


@converter("aten::sort")
def sort(op: Recorder, x: Value, dim: int = -1, descending: bool = False) -> tuple[Value, Value]:
    """sort(Tensor self, int dim=-1, bool descending=False) -> (Tensor values, Tensor indices)"""
    return sort_stable(op, x, stable=False, dim=dim, descending=descending)


@converter("aten::sort.stable")
def sort_stable(
    op: Recorder, x: Value, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> tuple[Value, Value]:
    """sort.stable(Tensor self, *, bool? stable, int dim=-1, bool descending=False) -> (Tensor values, Tensor indices)"""
    check_dimension(x, dim)
    if x.rank == 0:
        return x, op.cast(0, ir.DataType.INT64)
    axis = dim % x.rank
    everything = op.sizes(x, [axis])
    if stable:
        return _best(op, x, everything, axis, largest=descending)
    return _first(op, x, everything, axis, largest=descending, select=False)


@converter("aten::kthvalue")
def kthvalue(
    op: Recorder, x: Value, k: Any, dim: int = -1, keepdim: bool = False
) -> tuple[Value, Value]:
    """kthvalue(Tensor self, SymInt k, int dim=-1, bool keepdim=False) -> (Tensor values, Tensor indices)"""
    if x.rank == 0:
        return x, op.cast(0, ir.DataType.INT64)
    axis = dim % x.rank
    values, indices = sort_stable(op, x, stable=True, dim=axis)
    place = op.vector([op.Sub(op.cast(k, ir.DataType.INT64), 1)])
    return _take(op, values, place, axis, keepdim), _take(op, indices, place, axis, keepdim)


def _take(op: Recorder, x: Value, place: Value, axis: int, keepdim: bool) -> Value:
    """One slice along an axis; `place` has one element."""
    taken = op.Gather(x, place, axis=axis)
    return taken if keepdim else op.Squeeze(taken, [axis])


@converter("aten::median.dim")
def median_dim(op: Recorder, x: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
    """median.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)"""
    if x.rank == 0:
        return x, op.cast(0, ir.DataType.INT64)
    axis = dim % x.rank
    if x.dims[axis] == 0:
        raise Refused("the median of nothing")
    values, indices = sort_stable(op, x, stable=True, dim=axis)
    middle = op.Div(op.Sub(op.sizes(x, [axis]), 1), 2)
    value, index = (_take(op, v, middle, axis, keepdim) for v in (values, indices))
    if not is_float(x):
        return value, index
    first_nan = _arg(op, "ArgMax", x, axis, keepdim)
    is_nan = has_nan(op, x, axis, keepdim)
    return op.Where(is_nan, math.nan, value), op.Where(is_nan, first_nan, index)


@converter("aten::nanmedian.dim")
def nanmedian_dim(op: Recorder, x: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
    """nanmedian.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)"""
    if not is_float(x) or x.rank == 0:
        return median_dim(op, x, dim, keepdim)
    axis = dim % x.rank
    if x.dims[axis] == 0:
        raise Refused("the median of nothing")
    # NaN goes last; infinities before it keep their place among the known numbers.
    is_known = op.cast(op.Not(op.IsNaN(x)), ir.DataType.INT64)
    known = op.ReduceSum(is_known, [axis], keepdims=1)
    middle = op.Div(op.Max(op.Sub(known, 1), 0), 2)
    values, indices = sort_stable(op, x, stable=True, dim=axis)
    return _picked(op, values, indices, middle, axis, keepdim)


def _picked(
    op: Recorder, values: Value, indices: Value, place: Value, axis: int, keepdim: bool
) -> tuple[Value, Value]:
    """The elements at a place along an axis, for each row another, of two tensors."""
    value, index = (op.GatherElements(v, place, axis=axis) for v in (values, indices))
    return (value, index) if keepdim else (op.Squeeze(value, [axis]), op.Squeeze(index, [axis]))


def _of_all(median: Callable[..., tuple[Value, Value]]) -> Callable[..., Value]:
    def convert(op: Recorder, x: Value) -> Value:
        if 0 not in x.dims:
            return median(op, op.Reshape(x, [-1]), 0)[0] if x.rank else x
        # Of integers it is what the processor makes of NaN, as in torch.
        return op.cast(op.constant(math.nan, ir.DataType.FLOAT), op.dtype)

    return convert


converter("aten::median")(_of_all(median_dim))
converter("aten::nanmedian")(_of_all(nanmedian_dim))


@converter("aten::mode", when=has_known_size)
def mode(op: Recorder, x: Value, dim: int = -1, keepdim: bool = False) -> tuple[Value, Value]:
    """mode(Tensor self, int dim=-1, bool keepdim=False) -> (Tensor values, Tensor indices)"""
    if x.rank == 0:
        return x, op.cast(0, ir.DataType.INT64)
    axis = dim % x.rank
    size = x.dims[axis]
    assert isinstance(size, int)
    if size == 0:
        raise Refused("the mode of nothing")
    values, indices = sort(op, x, dim=axis)
    key = _comparable(op, values)
    column = op.vector([size if i == axis else 1 for i in range(x.rank)])
    places = op.Reshape(op.constant(list(range(size))), column)
    # Where each run of equal elements starts; a NaN is a run of its own.
    earlier = op.Slice(key, [0], [size - 1], [axis])
    changes = op.Not(op.Equal(op.Slice(key, [1], [size], [axis]), earlier))
    one = op.vector([1 if i == axis else op.size(x, i) for i in range(x.rank)])
    first = op.Expand(op.constant(True), one)
    starts = op.Where(op.Concat(first, changes, axis=axis), places, 0)
    lengths = op.Sub(places, running_maximum(op, starts, axis))
    end = _arg(op, "ArgMax", lengths, axis, True)
    return _picked(op, values, indices, end, axis, keepdim)
