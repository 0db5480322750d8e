"""Elementwise arithmetic: sums, products, and their combinations."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import onnx_ir as ir

from dort_rewriter.export.converters.opmath import (
    HALVES,
    cast_like,
    is_bool,
    is_float,
    like,
    store,
    wide_converter,
    widen,
    widen_beside,
)
from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import Refused, converter
from dort_rewriter.graph.values import Value
from dort_rewriter.graph.writer import is_negative, signed_one


def _same_as(onnx_op: str) -> Callable[..., Value]:
    """The converter of an operator that is one of ONNX with the same inputs."""

    def convert(op: Recorder, *args: Any) -> Value:
        return op.call(onnx_op, *args)

    return convert


for _name in (
    "Acos Acosh Asin Asinh Atan Atanh Cos Cosh Erf Exp Log Neg Reciprocal Sin Sinh Sqrt Tan Tanh"
).split():
    converter(f"aten::{_name.lower()}")(_same_as(_name))


def _scale(op: Recorder, factor: Any, value: Any) -> Any:
    """Factor * value, recording nothing for a factor of 1."""
    if not isinstance(factor, Value) and factor == 1:
        return value
    if not isinstance(factor, Value) and not isinstance(value, Value):
        return factor * value
    return op.Mul(value, like(op, factor, value))


def _terms(op: Recorder, x: Any, factor: Any, value: Any) -> tuple[Any, Any]:
    """x and factor * value; of 16 bits in float32: torch rounds the numbers, and the sum."""
    plain = not isinstance(factor, Value) and factor == 1
    narrow = next((v for v in (x, value) if isinstance(v, Value) and v.dtype in HALVES), None)
    if plain or narrow is None:
        if isinstance(factor, Value) and isinstance(x, Value):  # of two numbers, each of its type
            value = cast_like(op, value, x)
        return x, _scale(op, factor, value)
    first, second, wide = (widen(op, cast_like(op, v, narrow)) for v in (x, value, factor))
    return first, op.Mul(second, wide)


@converter("aten::add.Tensor", "aten::add.Scalar")
def add(op: Recorder, x: Any, other: Any, alpha: Any = 1) -> Value:
    """add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor"""
    if is_bool(x) and is_bool(other):
        return op.Or(x, other) if alpha else op.Identity(x)
    return op.Add(*_terms(op, x, alpha, other))


def _refuse_truth(op: Recorder, x: Any, other: Any) -> None:
    """Leave the error to torch's kernel, which no trace with symbolic sizes or a number tries."""
    if op.dtype == ir.DataType.BOOL or any(v is True or v is False for v in (x, other)):
        raise Refused("torch subtracts no truth values")


@converter("aten::sub.Tensor", "aten::sub.Scalar")
def sub(op: Recorder, x: Any, other: Any, alpha: Any = 1) -> Value:
    """sub.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor"""
    _refuse_truth(op, x, other)
    return op.Sub(*_terms(op, x, alpha, other))


@converter("aten::rsub.Scalar")
def rsub(op: Recorder, x: Value, other: Any, alpha: Any = 1) -> Value:
    """rsub.Scalar(Tensor self, Scalar other, Scalar alpha=1) -> Tensor"""
    _refuse_truth(op, x, other)
    return op.Sub(*_terms(op, other, alpha, x))


@converter("aten::mul.Tensor", "aten::mul.Scalar")
def mul(op: Recorder, x: Any, other: Any) -> Value:
    """mul.Tensor(Tensor self, Tensor other) -> Tensor"""
    if is_bool(x) and is_bool(other):
        return op.And(x, other)
    return op.Mul(widen_beside(op, x, other), other)


@wide_converter("aten::addcmul")
def addcmul(op: Recorder, x: Value, tensor1: Value, tensor2: Value, *, value: Any = 1) -> Value:
    """addcmul(Tensor self, Tensor tensor1, Tensor tensor2, *, Scalar value=1) -> Tensor"""
    return op.Add(x, op.Mul(_scale(op, value, tensor1), tensor2))


@wide_converter("aten::addcdiv")
def addcdiv(op: Recorder, x: Value, tensor1: Value, tensor2: Value, *, value: Any = 1) -> Value:
    """addcdiv(Tensor self, Tensor tensor1, Tensor tensor2, *, Scalar value=1) -> Tensor"""
    return op.Add(x, op.Div(_scale(op, value, tensor1), tensor2))


@converter("prims::fma")
def fma(op: Recorder, x: Value, y: Value, z: Value) -> Value:
    """fma(Tensor self, Tensor other, Tensor addend) -> Tensor

    Dynamo's spelling of ``addcmul_`` and ``addcdiv_`` since torch 2.13, for Inductor: eager on the
    CPU rounds the product, as this does.
    """
    # NOTE: the operands come in types of their own, where those of ``addcmul_`` did.
    a, b, c = (widen(op, op.cast(v, op.dtype)) for v in (x, y, z))
    return store(op, op.Add(op.Mul(a, b), c))


@wide_converter("aten::lerp.Scalar", "aten::lerp.Tensor")
def lerp(op: Recorder, x: Value, end: Value, weight: Any) -> Value:
    """lerp.Tensor(Tensor self, Tensor end, Tensor weight) -> Tensor"""
    way = op.Sub(end, x)
    if not isinstance(weight, Value):
        if abs(weight) < 0.5:
            return op.Add(x, op.Mul(way, weight))
        return op.Sub(end, op.Mul(way, 1 - weight))
    # The end is reached exactly for a weight of 1, the start for 0.
    from_start = op.Add(x, op.Mul(weight, way))
    from_end = op.Sub(end, op.Mul(way, op.Sub(1, weight)))
    return op.Where(op.Less(op.Abs(weight), 0.5), from_start, from_end)


@converter("aten::abs")
def abs_(op: Recorder, x: Value) -> Value:
    """abs(Tensor self) -> Tensor"""
    return op.Identity(x) if is_bool(x) else op.Abs(x)


@converter("aten::sign", "aten::sgn")
def sign(op: Recorder, x: Value) -> Value:
    """sign(Tensor self) -> Tensor"""
    if is_bool(x):
        return op.Identity(x)
    if not is_float(x):
        return op.Sign(x)
    # NOTE: ORT's Sign(NaN) is 1, torch's is 0.
    return op.Where(op.IsNaN(x), 0, op.Sign(x))


@wide_converter("aten::atan2")
def atan2(op: Recorder, x: Value, other: Value) -> Value:
    """atan2(Tensor self, Tensor other) -> Tensor"""
    rise, run = op.Abs(x), op.Abs(other)
    # Sign gives the slope of 0/0 (0) and of inf/inf (1).
    slope = op.Where(op.Equal(rise, run), op.Sign(rise), op.Div(rise, run))
    angle = op.Atan(slope)
    angle = op.Where(is_negative(op, other), op.Sub(math.pi, angle), angle)
    return op.Mul(angle, signed_one(op, x))


@wide_converter("aten::hypot")
def hypot(op: Recorder, x: Value, other: Value) -> Value:
    """hypot(Tensor self, Tensor other) -> Tensor"""
    a, b = op.Abs(x), op.Abs(other)
    long = op.Max(a, b)
    # NOTE: the squares of the operands themselves would overflow.
    ratio = op.Div(op.Min(a, b), long)
    length = op.Mul(long, op.Sqrt(op.Add(op.Mul(ratio, ratio), 1)))
    has_infinity = op.Or(op.Equal(a, math.inf), op.Equal(b, math.inf))
    length = op.Where(op.Equal(long, 0), long, length)
    return op.Where(has_infinity, math.inf, length)


@converter("aten::copysign.Tensor", "aten::copysign.Scalar")
def copysign(op: Recorder, x: Value, other: Any) -> Value:
    """copysign.Tensor(Tensor self, Tensor other) -> Tensor"""
    size = op.Abs(x)
    if not isinstance(other, Value):
        return op.Neg(size) if math.copysign(1, other) < 0 else size
    return op.Mul(size, signed_one(op, other))


@converter("aten::signbit")
def signbit(op: Recorder, x: Value) -> Value:
    """signbit(Tensor self) -> Tensor"""
    if is_bool(x):
        return op.And(x, False)
    return is_negative(op, x) if is_float(x) else op.Less(x, 0)


@converter("aten::angle")
def angle(op: Recorder, x: Value) -> Value:
    """angle(Tensor self) -> Tensor"""
    x = op.cast(x, op.dtype)
    turned = op.Where(op.Less(x, 0), op.constant(math.pi, op.dtype), op.constant(0.0, op.dtype))
    return op.Where(op.IsNaN(x), x, turned)
