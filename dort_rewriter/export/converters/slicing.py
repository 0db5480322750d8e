"""Parts of a tensor taken by position, put back, and their gradients.

Consecutive places that are written over, as those of a static cache, are a TensorScatter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
import torch

from dort_rewriter.export.converters.axes import (
    END,
    from_front,
    normalize_position,
    pad_axes,
    result_dims,
    size_names,
    to_front,
    zeros,
)
from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import converter
from dort_rewriter.graph.values import Value

SINCE = 24
"""The opset from which TensorScatter is there."""

_ATEN = torch.ops.aten
_COPIES = (_ATEN._to_copy.default, _ATEN.clone.default, _ATEN.alias.default, _ATEN.view.default)


def write_run(op: Recorder, x: Value, update: Value, first: Any, axis: int) -> Value:
    """`x` with an update in place of as many elements from `first` on, along an axis that is not
    the first one."""
    batch = op.size(x, 0)
    place = op.cast(op.vector([first]), ir.DataType.INT64)
    places = place if batch == 1 else op.Expand(place, op.vector([batch]))
    result: Value = op.TensorScatter(x, update, places, axis=axis)
    return result


def is_run(index: Any) -> bool:
    """Whether a node of the graph holds one place, or places each of which follows the last."""
    if not isinstance(index, torch.fx.Node):
        return False
    meta = index.meta.get("val")
    if isinstance(meta, torch.Tensor) and meta.ndim <= 1 and _is_one(meta):
        return True
    if index.target in _COPIES:
        return is_run(index.args[0])
    if index.target in (_ATEN.arange.default, _ATEN.arange.start):
        return True
    if index.target is _ATEN.arange.start_step:
        step = index.args[2] if len(index.args) > 2 else 1
        return isinstance(step, int) and step == 1
    if index.target is _ATEN.add.Tensor and index.kwargs.get("alpha", 1) == 1:
        a, b = index.args
        return any(is_run(run) and _is_shift(shift) for run, shift in ((a, b), (b, a)))
    return False


def _is_one(tensor: torch.Tensor) -> bool:
    return all(isinstance(size, int) and size == 1 for size in tensor.shape)


def _is_shift(value: Any) -> bool:
    """Whether what is added to places is one number for all of them."""
    meta = value.meta.get("val") if isinstance(value, torch.fx.Node) else value
    if isinstance(meta, torch.Tensor):
        return _is_one(meta) and not meta.is_floating_point()
    return isinstance(meta, int | torch.SymInt)


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
        return zeros(op, input_sizes)
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
