"""Tensors made of a value, of indices, or of nothing.

What torch leaves uninitialized is filled with zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from dort_rewriter.export.converters.symbolic import are_natural
from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import Arguments, Refused, by_name, converter
from dort_rewriter.graph.values import Value

Fill = Callable[[Recorder, Any, Any], Value]
"""Makes a tensor of the result's type, of given sizes or those of a tensor, of one number."""


def fillers(fill: Fill) -> dict[str, Callable[..., Value]]:
    """The converters, by operator, of what makes tensors of one number."""

    def full(op: Recorder, size: Any, fill_value: Any, *, dtype: Any = None) -> Value:
        return fill(op, size, fill_value)

    def full_like(op: Recorder, x: Any, fill_value: Any, *, dtype: Any = None) -> Value:
        return fill(op, x, fill_value)

    def new_full(op: Recorder, x: Any, size: Any, fill_value: Any, *, dtype: Any = None) -> Value:
        return fill(op, size, fill_value)

    def filled(number: int) -> Sequence[Callable[..., Value]]:
        def made(op: Recorder, size: Any, *strides: Any, dtype: Any = None) -> Value:
            return fill(op, size, number)

        def like(op: Recorder, x: Any, *, dtype: Any = None) -> Value:
            return fill(op, x, number)

        def new(op: Recorder, x: Any, size: Any, *strides: Any, dtype: Any = None) -> Value:
            return fill(op, size, number)

        return made, like, new

    (zeros, zeros_like, new_zeros), (ones, ones_like, new_ones) = filled(0), filled(1)
    return {
        "aten::full": full,
        "aten::full_like": full_like,
        "aten::new_full": new_full,
        **dict.fromkeys(("aten::zeros", "aten::empty.memory_format"), zeros),
        **dict.fromkeys(("aten::empty_strided", "aten::empty_permuted"), zeros),
        **dict.fromkeys(("aten::zeros_like", "aten::empty_like"), zeros_like),
        **dict.fromkeys(("aten::new_zeros", "aten::new_empty"), new_zeros),
        "aten::new_empty_strided": new_zeros,
        "aten::zero": lambda op, x: fill(op, x, 0),
        "aten::ones": ones,
        "aten::ones_like": ones_like,
        "aten::new_ones": new_ones,
    }


def _fill(op: Recorder, like: Sequence[Any] | Value, value: Any) -> Value:
    shape = op.sizes(like) if isinstance(like, Value) else op.vector(like)
    return op.Expand(op.cast(value, op.dtype), shape)


for _name, _function in fillers(_fill).items():
    converter(_name)(_function)
converter("aten::_efficientzerotensor")(fillers(_fill)["aten::zeros"])


@converter("aten::fill.Scalar", "aten::fill.Tensor")
def fill(op: Recorder, x: Value, value: Any) -> Value:
    """fill.Scalar(Tensor self, Scalar value) -> Tensor"""
    return _fill(op, x, value)


@converter("aten::scalar_tensor")
def scalar_tensor(op: Recorder, s: Any, *, dtype: Any = None) -> Value:
    """scalar_tensor(Scalar s, *, ScalarType? dtype=None) -> Tensor"""
    return op.cast(s, op.dtype)


@converter("aten::arange", "aten::arange.start", "aten::arange.start_step")
@by_name
def arange(op: Recorder, given: Arguments) -> Value:
    """arange.start_step(Scalar start, Scalar end, Scalar step=1, *, ScalarType? dtype=None) -> Tensor"""
    start, end, step = getattr(given, "start", 0), given.end, getattr(given, "step", 1)
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


@converter("aten::eye", "aten::eye.m")
def eye(op: Recorder, n: Any, m: Any = None, *, dtype: Any = None) -> Value:
    """eye.m(SymInt n, SymInt m, *, ScalarType? dtype=None) -> Tensor"""
    wide = ir.DataType.INT64
    rows, columns = (
        op.Range(op.cast(0, wide), op.cast(s, wide), op.cast(1, wide))
        for s in (n, n if m is None else m)
    )
    return op.cast(op.Equal(op.Unsqueeze(rows, [1]), columns), op.dtype)


def _triangle(upper: int) -> Callable[..., Value]:
    def convert(op: Recorder, x: Value, diagonal: Any = 0) -> Value:
        return op.Trilu(x, op.cast(diagonal, ir.DataType.INT64), upper=upper)

    return convert


def _places(find: Callable[..., Any]) -> Callable[..., Value]:
    def convert(op: Recorder, row: int, col: int, offset: int = 0, *, dtype: Any = None) -> Value:
        return op.constant(np.stack(find(row, offset, col)), op.dtype)

    return convert


converter("aten::tril")(_triangle(0))
converter("aten::triu")(_triangle(1))
converter("aten::tril_indices")(_places(np.tril_indices))
converter("aten::triu_indices")(_places(np.triu_indices))
