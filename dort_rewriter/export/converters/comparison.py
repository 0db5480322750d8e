"""Comparisons, the larger and the smaller of two numbers, tests for NaN and infinity, selection.

NOTE: of zeros of different signs torch's kernels return the second in whole vectors, the first
behind the last of them. ONNX leaves it open: a model of a backend follows torch where there is no
whole vector.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

import onnx_ir as ir
import torch
from torch.utils._python_dispatch import _disable_current_modes

from dort_rewriter.export.converters.opmath import HALVES, is_bool, is_float, like, store, widen
from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import Arguments, by_name, converter
from dort_rewriter.graph.values import Value


def _extreme(before: str, onnx_op: str, of_truth: str) -> Callable[..., Value]:
    """The converter of the larger or the smaller of two, which the second is where the first is
    ``before`` it."""

    def convert(op: Recorder, x: Value, other: Value) -> Value:
        if x.dtype == ir.DataType.INT64:  # ORT's Max of 1 and 2**31 is 1
            return op.Where(op.call(before, x, other), other, x)
        if is_bool(x):
            return op.call(of_truth, x, other)
        if _is_less_than_a_vector(op):
            return _first_of_equal(op, before, x, other)
        # ORT 1.19 loses float16's NaN
        return store(op, op.call(onnx_op, widen(op, x), widen(op, other)))

    return convert


maximum = converter("aten::maximum")(_extreme("Less", "Max", "Or"))
minimum = converter("aten::minimum")(_extreme("Greater", "Min", "And"))


_BYTES = 64
"""Those that torch's kernels of two numbers take at once, of each."""


_OPTIMIZERS = os.path.join("torch", "optim", "")


def _is_less_than_a_vector(op: Recorder) -> bool:
    """Whether torch computes a result number by number, in a backend, which is to follow it.

    NOTE: not in a step of torch's optimizers: their states have no zeros of two signs, and the
    nodes of all tensors are to be alike, whatever their sizes, for a loop over them.
    """
    result = op.result
    if (
        not op.own_kernels
        or not isinstance(result, torch.Tensor)
        or not all(isinstance(n, int) for n in result.shape)
        or _OPTIMIZERS in (op.fx_node.meta.get("stack_trace") or "")
    ):
        return False
    return result.is_floating_point() and result.numel() * result.itemsize < _BYTES


def _first_of_equal(op: Recorder, before: str, x: Value, other: Value) -> Value:
    """The second where the first is before it, or it is NaN."""
    x, other = widen(op, x), widen(op, other)
    return store(op, op.Where(op.Or(op.call(before, x, other), op.IsNaN(other)), other, x))


def _known(beyond: str, of_others: Callable[..., Value]) -> Callable[..., Value]:
    """The converter of the larger or the smaller of two, of which NaN is none; of 16 bits the
    second of zeros."""

    def convert(op: Recorder, x: Value, other: Value) -> Value:
        if not is_float(x):
            return of_others(op, x, other)
        test = f"{beyond}OrEqual" if op.dtype in HALVES else beyond
        x, other = widen(op, x), widen(op, other)
        return store(op, op.Where(op.Or(op.call(test, other, x), op.IsNaN(x)), other, x))

    return convert


converter("aten::fmax")(_known("Greater", maximum))
converter("aten::fmin")(_known("Less", minimum))


def _ordered(op: Recorder, *values: Any) -> list[Any]:
    """Operands in a type that has an order: ONNX compares no truth values."""
    values = tuple(int(v) if isinstance(v, bool) else v for v in values)
    return [op.cast(v, ir.DataType.INT32) if is_bool(v) else v for v in values]


def select(op: Recorder, condition: Value, a: Any, b: Any) -> Value:
    """A where the condition holds, b elsewhere; ORT has no Where of truth values."""
    if is_bool(a) and is_bool(b):
        return op.Or(op.And(condition, a), op.And(op.Not(condition), b))
    return op.Where(condition, a, b)


@converter("aten::eq.Tensor", "aten::eq.Scalar")
def eq(op: Recorder, x: Value, other: Any) -> Value:
    """eq.Tensor(Tensor self, Tensor other) -> Tensor"""
    return op.Equal(x, other)


@converter("aten::ne.Tensor", "aten::ne.Scalar")
def ne(op: Recorder, x: Value, other: Any) -> Value:
    """ne.Tensor(Tensor self, Tensor other) -> Tensor"""
    return op.Not(op.Equal(x, other))


def _ordering(onnx_op: str) -> Callable[..., Value]:
    def convert(op: Recorder, x: Value, other: Any) -> Value:
        return op.call(onnx_op, *_ordered(op, x, other))

    return convert


for _name, _onnx_op in (
    *(("lt", "Less"), ("le", "LessOrEqual")),
    *(("gt", "Greater"), ("ge", "GreaterOrEqual")),
):
    converter(f"aten::{_name}.Tensor", f"aten::{_name}.Scalar")(_ordering(_onnx_op))


def _boolean_test(test: Callable[[Recorder, Value], Value]) -> Callable[..., Value]:
    """The converter of a test of floating-point numbers, which no other number passes."""

    def convert(op: Recorder, x: Value) -> Value:
        if is_float(x):
            return test(op, x)
        return op.Expand(op.constant(False), op.sizes(x))

    return convert


converter("aten::isnan")(_boolean_test(lambda op, x: op.IsNaN(x)))
converter("aten::isinf")(_boolean_test(lambda op, x: op.Equal(op.Abs(x), math.inf)))
converter("aten::isposinf")(_boolean_test(lambda op, x: op.Equal(x, math.inf)))
converter("aten::isneginf")(_boolean_test(lambda op, x: op.Equal(x, -math.inf)))


@converter("aten::where.self")
def where(op: Recorder, condition: Value, x: Any, other: Any) -> Value:
    """where.self(Tensor condition, Tensor self, Tensor other) -> Tensor"""
    return select(op, op.cast(condition, ir.DataType.BOOL), x, other)


@converter("aten::masked_fill.Scalar", "aten::masked_fill.Tensor")
def masked_fill(op: Recorder, x: Value, mask: Value, value: Any) -> Value:
    """masked_fill.Scalar(Tensor self, Tensor mask, Scalar value) -> Tensor"""
    fill = op.cast(value, op.dtype)
    return select(op, op.cast(mask, ir.DataType.BOOL), fill, op.cast(x, op.dtype))


@converter("aten::clamp", "aten::clamp_min", "aten::clamp_max")
@by_name
def clamp(op: Recorder, given: Arguments) -> Value:
    """clamp(Tensor self, Scalar? min=None, Scalar? max=None) -> Tensor"""
    return between(op, given.x, getattr(given, "min", None), getattr(given, "max", None))


def between(op: Recorder, x: Value, low: Any, high: Any) -> Value:
    """x, or the Python number of two that it is beyond."""
    bounds = _in_range(op.result.dtype, low, high)
    if any(isinstance(bound, float) and math.isnan(bound) for bound in bounds):
        return op.Mul(x, math.nan)
    if None in bounds and not is_float(x):
        return _clamp(op, x, *bounds)
    # NOTE: ORT's Clip without one of its bounds turns infinity into the largest number. Its Max
    # and Min have any of two equal zeros, where torch leaves x as it is.
    low, high = (
        end if b is None else b for b, end in zip(bounds, (-math.inf, math.inf), strict=True)
    )
    return op.Clip(x, like(op, low, x), like(op, high, x))


def _in_range(dtype: torch.dtype, low: Any, high: Any) -> list[Any]:
    """The bounds that torch takes for two numbers, of which integers may be beyond their type: some
    wrap around there, some become its least or its largest number (2.15), some are refused."""
    given = [low, high]
    if dtype.is_floating_point or dtype is torch.bool:
        return given
    ends = torch.iinfo(dtype)
    if any(isinstance(b, Value) for b in given):  # known when it runs
        return given
    if all(ends.min <= b <= ends.max for b in given if b is not None):
        return given
    try:
        with _disable_current_modes():
            return torch.tensor([ends.min, ends.max], dtype=dtype).clamp(low, high).tolist()
    except RuntimeError:  # torch refuses it when it runs, too
        return given


@converter("aten::clamp.Tensor", "aten::clamp_min.Tensor", "aten::clamp_max.Tensor")
@by_name
def clamp_tensor(op: Recorder, given: Arguments) -> Value:
    """clamp.Tensor(Tensor self, Tensor? min=None, Tensor? max=None) -> Tensor"""
    return _clamp(op, given.x, getattr(given, "min", None), getattr(given, "max", None))


def _clamp(op: Recorder, x: Value, low: Any, high: Any) -> Value:
    if low is not None:
        x = maximum(op, x, op.cast(low, op.dtype))
    return x if high is None else minimum(op, x, op.cast(high, op.dtype))


@converter("aten::nan_to_num")
def nan_to_num(
    op: Recorder, x: Value, nan: Any = None, posinf: Any = None, neginf: Any = None
) -> Value:
    """nan_to_num(Tensor self, float? nan=None, float? posinf=None, float? neginf=None) -> Tensor"""
    if not is_float(x):
        return x
    biggest = torch.finfo(op.result.dtype).max
    result = op.Where(op.IsNaN(x), op.cast(0.0 if nan is None else nan, op.dtype), x)
    high = op.cast(biggest if posinf is None else posinf, op.dtype)
    low = op.cast(-biggest if neginf is None else neginf, op.dtype)
    return op.Where(op.Equal(x, math.inf), high, op.Where(op.Equal(x, -math.inf), low, result))
