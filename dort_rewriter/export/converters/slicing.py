"""Parts of a tensor taken by position, put back, and their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from dort_rewriter.export.converters.axes import (
    END,
    from_front,
    normalize_position,
    pad_axes,
    result_dims,
    size_names,
    to_front,
)
from dort_rewriter.export.converters.caches import SINCE, write_run
from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import converter
from dort_rewriter.graph.values import Value


@converter("aten::select.int", "aten::select_copy.int")
def select(op: Recorder, x: Value, dim: int, index: Any) -> Value:
    """select.int(Tensor(a) self, int dim, SymInt index) -> Tensor(a)"""
    return op.Gather(x, index, axis=dim % x.rank)


@converter("aten::slice.Tensor", "aten::slice_copy.Tensor")
def slice_tensor(
    op: Recorder, x: Value, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1
) -> Value:
    """slice.Tensor(Tensor(a) self, int dim=0, SymInt? start=None, SymInt? end=None, SymInt step=1) -> Tensor(a)"""
    if size_names(x.dims) == result_dims(op):  # the step is positive: nothing was left out
        return x
    start = 0 if start is None else start
    end = END if end is None else end
    return op.Slice(x, op.vector([start]), op.vector([end]), [dim % x.rank], op.vector([step]))


@converter("aten::slice_scatter")
def slice_scatter(
    op: Recorder,
    x: Value,
    src: Value,
    dim: int = 0,
    start: Any = None,
    end: Any = None,
    step: Any = 1,
) -> Value:
    """slice_scatter(Tensor self, Tensor src, int dim=0, SymInt? start=None, SymInt? end=None, SymInt step=1) -> Tensor"""
    axis, src = dim % x.rank, op.cast(src, op.dtype)
    size = op.size(x, axis)
    first = normalize_position(op, 0 if start is None else start, size)
    last = normalize_position(op, END if end is None else end, size)
    if 0 in src.dims:
        return x
    if size_names(src.dims) == size_names(x.dims):
        return src
    if isinstance(step, int) and step == 1:
        if op.opset >= SINCE and axis:
            return write_run(op, x, src, first, axis)
        if last is not size and not isinstance(src.dims[axis], int):
            # A slice may end before it starts: it has nothing then.
            last = op.Max(op.vector([first]), op.vector([last]))
        return _replace(op, x, src, axis, first, last)
    steps = (op.Squeeze(op.vector([p]), [0]) for p in (first, last, step))
    places = op.Unsqueeze(op.Range(*steps), [1])
    scattered = op.ScatterND(to_front(op, x, [axis]), places, to_front(op, src, [axis]))
    return from_front(op, scattered, [axis])


def _replace(
    op: Recorder, x: Value, src: Value, axis: int, first: int | Value, last: int | Value
) -> Value:
    """Put `src` between what is before `first` and what starts at `last`."""
    parts = [src]
    if not (isinstance(first, int) and first == 0):
        parts.insert(0, op.Slice(x, [0], op.vector([first]), [axis]))
    if last is not op.size(x, axis) and not (isinstance(last, int) and last == x.dims[axis]):
        parts.append(op.Slice(x, op.vector([last]), [END], [axis]))
    return op.Concat(*parts, axis=axis)


@converter("aten::select_scatter")
def select_scatter(op: Recorder, x: Value, src: Value, dim: int, index: Any) -> Value:
    """select_scatter(Tensor self, Tensor src, int dim, SymInt index) -> Tensor"""
    axis = dim % x.rank
    first = normalize_position(op, index, op.size(x, axis))
    last = first + 1 if isinstance(first, int) else op.Add(first, 1)
    return _replace(op, x, op.Unsqueeze(op.cast(src, op.dtype), [axis]), axis, first, last)


@converter("aten::slice_backward")
def slice_backward(
    op: Recorder,
    grad_output: Value,
    input_sizes: Sequence[Any],
    dim: int,
    start: Any,
    end: Any,
    step: Any,
) -> Value:
    """slice_backward(Tensor grad_output, SymInt[] input_sizes, int dim, SymInt start, SymInt end, SymInt step) -> Tensor"""
    axis = dim % grad_output.rank
    size = _as_size(op, input_sizes[axis])
    first = normalize_position(op, start, size)
    if 0 in grad_output.dims:
        zero = op.constant([0], op.dtype).const_value
        return op.ConstantOfShape(op.vector(input_sizes), value=zero)
    spread = grad_output
    if not (isinstance(step, int) and step == 1):
        spread = _spread(op, grad_output, axis, step)
    return _pad(op, spread, axis, first, size)


@converter("aten::select_backward")
def select_backward(
    op: Recorder, grad_output: Value, input_sizes: Sequence[Any], dim: int, index: Any
) -> Value:
    """select_backward(Tensor grad_output, SymInt[] input_sizes, int dim, SymInt index) -> Tensor"""
    axis = dim % len(input_sizes)
    size = _as_size(op, input_sizes[axis])
    first = normalize_position(op, index, size)
    return _pad(op, op.Unsqueeze(grad_output, [axis]), axis, first, size)


def _as_size(op: Recorder, size: Any) -> int | Value:
    return op.Reshape(size, [-1]) if isinstance(size, ir.Value) else int(size)


def _spread(op: Recorder, x: Value, axis: int, step: Any) -> Value:
    """Put step - 1 zeros after each element of an axis."""
    apart = op.Unsqueeze(x, [axis + 1])
    wide = _pad(op, apart, axis + 1, 0, _as_size(op, step))
    sizes: list[Any] = [op.size(x, i) for i in range(x.rank)]
    sizes[axis] = -1
    return op.Reshape(wide, op.vector(sizes))


def _pad(op: Recorder, x: Value, axis: int, before: int | Value, size: int | Value) -> Value:
    """Put zeros around an axis until it has the size; what is past the end goes away.

    NOTE: the last spread element brings zeros that the axis may have no room for: a negative pad.
    """
    have = op.size(x, axis)
    after: int | Value
    if isinstance(before, int) and isinstance(have, int) and isinstance(size, int):
        after = size - have - before
    else:
        after = op.Sub(op.Sub(op.vector([size]), op.vector([have])), op.vector([before]))
    if isinstance(before, int) and isinstance(after, int) and before == after == 0:
        return x
    return pad_axes(op, x, [before, after], [axis])
