"""Tensors made of a value, of indices, or of nothing.

What torch leaves uninitialized is filled with zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from dort_rewriter.export.converters.symbolic import are_natural
from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import Refused, converter
from dort_rewriter.graph.values import Value


def _fill(op: Recorder, size: Sequence[Any] | Value, value: Any) -> Value:
    """A tensor of the result's type, holding one value."""
    shape = size if isinstance(size, Value) else op.vector(size)
    return op.Expand(op.cast(value, op.dtype), shape)


@converter("aten::full")
def full(op: Recorder, size: Sequence[Any], fill_value: Any, *, dtype: Any = None) -> Value:
    """full(SymInt[] size, Scalar fill_value, *, ScalarType? dtype=None) -> Tensor"""
    return _fill(op, size, fill_value)


@converter("aten::full_like")
def full_like(op: Recorder, x: Value, fill_value: Any, *, dtype: Any = None) -> Value:
    """full_like(Tensor self, Scalar fill_value, *, ScalarType? dtype=None) -> Tensor"""
    return _fill(op, op.sizes(x), fill_value)


@converter("aten::new_full")
def new_full(
    op: Recorder, x: Value, size: Sequence[Any], fill_value: Any, *, dtype: Any = None
) -> Value:
    """new_full(Tensor self, SymInt[] size, Scalar fill_value, *, ScalarType? dtype=None) -> Tensor"""
    return _fill(op, size, fill_value)


@converter("aten::zeros", "aten::_efficientzerotensor", "aten::empty.memory_format")
def zeros(op: Recorder, size: Sequence[Any], *, dtype: Any = None) -> Value:
    """zeros(SymInt[] size, *, ScalarType? dtype=None) -> Tensor"""
    return _fill(op, size, 0)


@converter("aten::ones")
def ones(op: Recorder, size: Sequence[Any], *, dtype: Any = None) -> Value:
    """ones(SymInt[] size, *, ScalarType? dtype=None) -> Tensor"""
    return _fill(op, size, 1)


@converter("aten::zeros_like", "aten::empty_like")
def zeros_like(op: Recorder, x: Value, *, dtype: Any = None) -> Value:
    """zeros_like(Tensor self, *, ScalarType? dtype=None) -> Tensor"""
    return _fill(op, op.sizes(x), 0)


@converter("aten::zero")
def zero(op: Recorder, x: Value) -> Value:
    """zero(Tensor self) -> Tensor"""
    return _fill(op, op.sizes(x), 0)


@converter("aten::ones_like")
def ones_like(op: Recorder, x: Value, *, dtype: Any = None) -> Value:
    """ones_like(Tensor self, *, ScalarType? dtype=None) -> Tensor"""
    return _fill(op, op.sizes(x), 1)


@converter("aten::new_zeros", "aten::new_empty")
def new_zeros(op: Recorder, x: Value, size: Sequence[Any], *, dtype: Any = None) -> Value:
    """new_zeros(Tensor self, SymInt[] size, *, ScalarType? dtype=None) -> Tensor"""
    return _fill(op, size, 0)


@converter("aten::new_ones")
def new_ones(op: Recorder, x: Value, size: Sequence[Any], *, dtype: Any = None) -> Value:
    """new_ones(Tensor self, SymInt[] size, *, ScalarType? dtype=None) -> Tensor"""
    return _fill(op, size, 1)


@converter("aten::empty_strided")
def empty_strided(
    op: Recorder, size: Sequence[Any], stride: Sequence[Any], *, dtype: Any = None
) -> Value:
    """empty_strided(SymInt[] size, SymInt[] stride, *, ScalarType? dtype=None) -> Tensor"""
    return _fill(op, size, 0)


@converter("aten::new_empty_strided")
def new_empty_strided(
    op: Recorder, x: Value, size: Sequence[Any], stride: Sequence[Any], *, dtype: Any = None
) -> Value:
    """new_empty_strided(Tensor self, SymInt[] size, SymInt[] stride, *, ScalarType? dtype=None) -> Tensor"""
    return _fill(op, size, 0)


@converter("aten::empty_permuted")
def empty_permuted(
    op: Recorder, size: Sequence[Any], physical_layout: Sequence[int], *, dtype: Any = None
) -> Value:
    """empty_permuted(SymInt[] size, int[] physical_layout, *, ScalarType? dtype=None) -> Tensor"""
    return _fill(op, size, 0)


@converter("aten::fill.Scalar", "aten::fill.Tensor")
def fill(op: Recorder, x: Value, value: Any) -> Value:
    """fill.Scalar(Tensor self, Scalar value) -> Tensor"""
    return _fill(op, op.sizes(x), value)


@converter("aten::scalar_tensor")
def scalar_tensor(op: Recorder, s: Any, *, dtype: Any = None) -> Value:
    """scalar_tensor(Scalar s, *, ScalarType? dtype=None) -> Tensor"""
    return op.cast(s, op.dtype)


@converter("aten::arange")
def arange(op: Recorder, end: Any, *, dtype: Any = None) -> Value:
    """arange(Scalar end, *, ScalarType? dtype=None) -> Tensor"""
    return arange_step(op, 0, end, 1)


@converter("aten::arange.start")
def arange_start(op: Recorder, start: Any, end: Any, *, dtype: Any = None) -> Value:
    """arange.start(Scalar start, Scalar end, *, ScalarType? dtype=None) -> Tensor"""
    return arange_step(op, start, end, 1)


@converter("aten::arange.start_step")
def arange_step(op: Recorder, start: Any, end: Any, step: Any = 1, *, dtype: Any = None) -> Value:
    """arange.start_step(Scalar start, Scalar end, Scalar step=1, *, ScalarType? dtype=None) -> Tensor"""
    wide = ir.DataType.INT64
    if all(_is_integer(v) for v in (start, end, step)):
        return op.cast(_count(op, start, end, step), op.dtype)
    if not op.dtype.is_floating_point():
        raise Refused("integers between bounds that are not")
    # NOTE: ORT's Range adds the step up; torch multiplies it, in float64.
    precise = ir.DataType.DOUBLE
    count = op.result.shape[0]
    if not isinstance(count, int):
        length = op.Sub(op.cast(end, precise), op.cast(start, precise))
        count = op.cast(op.Ceil(op.Div(length, op.cast(step, precise))), wide)
    places = op.cast(op.Range(op.cast(0, wide), op.cast(count, wide), op.cast(1, wide)), precise)
    steps = op.Mul(places, op.cast(step, precise))
    return op.cast(op.Add(steps, op.cast(start, precise)), op.dtype)


def _count(op: Recorder, start: Any, end: Any, step: Any) -> Value:
    """Integers from one to another.

    NOTE: onnxruntime makes a Slice of a Gather by a Range, and to a Slice a number below zero is
    a place before the end: where the numbers may be so, a Range counts how far they are apart.
    """
    wide = ir.DataType.INT64
    first, last, stride = (op.cast(v, wide) for v in (start, end, step))
    if isinstance(step, int) and step < 0:
        backwards = op.Range(op.cast(0, wide), op.Sub(first, last), op.cast(-step, wide))
        return op.Sub(first, backwards)
    if start >= 0 if isinstance(start, int) else are_natural(op, 0):
        return op.Range(first, last, stride)
    return op.Add(first, op.Range(op.cast(0, wide), op.Sub(last, first), stride))


def _is_integer(value: Any) -> bool:
    if isinstance(value, ir.Value):
        return value.dtype is not None and not value.dtype.is_floating_point()
    return isinstance(value, int)


@converter("aten::eye")
def eye(op: Recorder, n: Any, *, dtype: Any = None) -> Value:
    """eye(SymInt n, *, ScalarType? dtype=None) -> Tensor"""
    return eye_m(op, n, n)


@converter("aten::eye.m")
def eye_m(op: Recorder, n: Any, m: Any, *, dtype: Any = None) -> Value:
    """eye.m(SymInt n, SymInt m, *, ScalarType? dtype=None) -> Tensor"""
    wide = ir.DataType.INT64
    rows, columns = (
        op.Range(op.cast(0, wide), op.cast(s, wide), op.cast(1, wide)) for s in (n, m)
    )
    return op.cast(op.Equal(op.Unsqueeze(rows, [1]), columns), op.dtype)


@converter("aten::tril")
def tril(op: Recorder, x: Value, diagonal: Any = 0) -> Value:
    """tril(Tensor self, SymInt diagonal=0) -> Tensor"""
    return op.Trilu(x, op.cast(diagonal, ir.DataType.INT64), upper=0)


@converter("aten::triu")
def triu(op: Recorder, x: Value, diagonal: Any = 0) -> Value:
    """triu(Tensor self, SymInt diagonal=0) -> Tensor"""
    return op.Trilu(x, op.cast(diagonal, ir.DataType.INT64), upper=1)


@converter("aten::tril_indices")
def tril_indices(op: Recorder, row: int, col: int, offset: int = 0, *, dtype: Any = None) -> Value:
    """tril_indices(int row, int col, int offset=0, *, ScalarType? dtype=None) -> Tensor"""
    return op.constant(np.stack(np.tril_indices(row, offset, col)), op.dtype)


@converter("aten::triu_indices")
def triu_indices(op: Recorder, row: int, col: int, offset: int = 0, *, dtype: Any = None) -> Value:
    """triu_indices(int row, int col, int offset=0, *, ScalarType? dtype=None) -> Tensor"""
    return op.constant(np.stack(np.triu_indices(row, offset, col)), op.dtype)
