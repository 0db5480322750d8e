"""Quotients, remainders and common divisors, exact for every pair of signs; numbers rounded.

ONNX divides integers towards zero; its Mod follows the divisor's sign, or the dividend's with
fmod.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import onnx_ir as ir
import torch

from dort_rewriter.export.converters.opmath import (
    HALVES,
    has_any,
    is_float,
    rounded,
    store,
    widen,
    widen_beside,
)
from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import Refused, converter
from dort_rewriter.export.subgraphs import loop
from dort_rewriter.graph.values import Value
from dort_rewriter.graph.writer import signed_one


def truncate(op: Recorder, x: Value) -> Value:
    """Floating-point numbers rounded towards zero, which keeps the sign."""
    return op.Mul(op.Floor(op.Abs(x)), signed_one(op, x))


def _to_whole(function: Callable[[Recorder, Value], Value]) -> Callable[..., Value]:
    def convert(op: Recorder, x: Value) -> Value:
        return function(op, x) if is_float(x) else x

    return convert


converter("aten::ceil")(_to_whole(lambda op, x: op.Ceil(x)))
converter("aten::floor")(_to_whole(lambda op, x: op.Floor(x)))
converter("aten::trunc")(_to_whole(truncate))


@converter("aten::frac")
def frac(op: Recorder, x: Value) -> Value:
    """frac(Tensor self) -> Tensor"""
    return op.Sub(x, truncate(op, x))


@converter("aten::round", "aten::round.decimals")
def round_(op: Recorder, x: Value, *, decimals: int = 0) -> Value:
    """round.decimals(Tensor self, *, int decimals) -> Tensor"""
    if not is_float(x):
        return x
    if decimals == 0:
        return op.Round(x)
    x = widen(op, x)
    scale = float(10 ** abs(decimals))
    if decimals > 0:
        return store(op, op.Div(op.Round(op.Mul(x, scale)), scale))
    return store(op, op.Mul(op.Round(op.Div(x, scale)), scale))


def _has_float(*values: Any) -> bool:
    return any(is_float(v) for v in values)


class _Divisor(NamedTuple):
    """Integers to divide by, without the two that end the process."""

    safe: Any
    """1 in place of 0 and of -1."""
    is_minus_one: Value | bool


def _divisor(op: Recorder, b: Any, dtype: ir.DataType) -> _Divisor:
    """Integers to divide by; a zero among them fails the run, as it does in torch.

    NOTE: the processor stops a program at a division by zero, and at the lowest integer divided by
    -1: onnxruntime 1.19 checks for neither, 1.31 for zero only.
    """
    number = b.const_value.numpy() if isinstance(b, Value) and b.const_value is not None else b
    if isinstance(number, int):
        if number == 0:
            raise Refused("an integer divided by zero")
        is_minus_one = number == -1 and dtype.is_signed()
        return _Divisor(1 if is_minus_one else b, is_minus_one)
    if number is not b and (number == 0).any():
        raise Refused("an integer divided by zero")
    if number is not b and not (number == -1).any():
        return _Divisor(b, False)
    if dtype == ir.DataType.BOOL:  # torch has none either
        raise Refused("a truth value to divide by")
    is_zero = op.Equal(b, 0)
    # A place outside of a tensor of one element where the divisor is zero.
    one = op.Gather(op.constant([1], dtype), op.cast(is_zero, ir.DataType.INT64), axis=0)
    if not dtype.is_signed():
        return _Divisor(op.Where(is_zero, one, b), False)
    is_opposite = op.Equal(b, -1)
    return _Divisor(op.Where(op.Or(is_zero, is_opposite), one, b), is_opposite)


def _integers(op: Recorder, a: Any, b: Any) -> tuple[Value, _Divisor]:
    """Integers to divide, as a result also when it is a number, and those to divide them by."""
    found = next((v.dtype for v in (a, b) if isinstance(v, Value)), None)
    dtype = found or op.dtype
    return op.cast(a, dtype), _divisor(op, b, dtype)


def _choose(op: Recorder, divisor: _Divisor, special: Any, usual: Any) -> Any:
    """What holds for -1 where that is the divisor."""
    if isinstance(divisor.is_minus_one, Value):
        return op.Where(divisor.is_minus_one, special, usual)
    return special if divisor.is_minus_one else usual


def _floor_integers(op: Recorder, a: Any, b: Any) -> Value:
    a, divisor = _integers(op, a, b)
    # NOTE: (a - a mod b) / b overflows near the bounds of the type; this does not.
    quotient = op.Div(a, divisor.safe)
    is_short = op.Not(op.Equal(op.Mod(a, divisor.safe), op.Sub(a, op.Mul(quotient, divisor.safe))))
    down = op.Sub(quotient, op.Cast(is_short, to=quotient.dtype))
    result: Value = _choose(op, divisor, op.Sub(0, a), down)
    return result


def _truncate_integers(op: Recorder, a: Any, b: Any) -> Value:
    """a / b rounded towards zero."""
    a, divisor = _integers(op, a, b)
    result: Value = _choose(op, divisor, op.Sub(0, a), op.Div(a, divisor.safe))
    return result


def floor_quotient(op: Recorder, a: Any, b: Any) -> Value:
    """a // b as Python and torch round it."""
    if not _has_float(a, b):
        return _floor_integers(op, a, b)
    # NOTE: Floor(Div(a, b)) is wrong where a / b rounds up to an integer, as in 1.0 // 0.1.
    rest = op.Mod(a, b, fmod=1)
    is_short = op.And(op.Not(op.Equal(rest, 0)), op.Xor(op.Less(b, 0), op.Less(rest, 0)))
    # NOTE: torch rounds to the type it stores after each step.
    difference = _stored(op, op.Sub(a, rest), b)
    exact = _stored(op, op.Div(difference, b), b)
    lower = _stored(op, op.Sub(exact, op.Cast(is_short, to=exact.dtype)), b)
    down = op.Floor(lower)
    quotient = op.Where(op.Greater(op.Sub(lower, down), 0.5), op.Add(down, 1), down)
    plain = op.Div(a, b)
    size = op.Abs(op.Where(op.Equal(b, 0), plain, quotient))
    return op.Mul(size, signed_one(op, plain))  # zero has a sign


def _stored(op: Recorder, value: Value, divisor: Any) -> Value:
    """The numbers that torch keeps of these on the way: all digits, where it divides by one number."""
    if not isinstance(divisor, Value) or all(dim == 1 for dim in divisor.dims):
        return value
    narrow = isinstance(op.result, torch.Tensor) and op.dtype in HALVES
    return op.cast(store(op, value), ir.DataType.FLOAT) if narrow else value


def floor_remainder(op: Recorder, a: Any, b: Any) -> Value:
    """A % b, of the sign of b."""
    if not _has_float(a, b):
        a, divisor = _integers(op, a, b)
        result: Value = _choose(op, divisor, op.Sub(a, a), op.Mod(a, divisor.safe))
        return result
    rest = op.Mod(a, b, fmod=1)
    is_opposite = op.And(op.Not(op.Equal(rest, 0)), op.Xor(op.Less(b, 0), op.Less(rest, 0)))
    return op.Where(is_opposite, op.Add(rest, b), rest)


@converter("aten::div.Tensor", "aten::div.Scalar")
def div(op: Recorder, x: Value, other: Any) -> Value:
    """div.Tensor(Tensor self, Tensor other) -> Tensor"""
    if not op.dtype.is_floating_point():  # seen with symbolic sizes (torch 2.8)
        raise Refused("its recorded result is made of integers, which is not what torch computes")
    return op.Div(widen_beside(op, x, other), other)


@converter("aten::div.Tensor_mode", "aten::div.Scalar_mode")
def div_mode(op: Recorder, x: Value, other: Any, *, rounding_mode: str | None) -> Value:
    """div.Tensor_mode(Tensor self, Tensor other, *, str? rounding_mode) -> Tensor"""
    if rounding_mode is None:
        return div(op, x, other)
    if rounding_mode == "floor":
        return floor_divide(op, x, other)
    if rounding_mode != "trunc":
        raise Refused(f"rounding_mode={rounding_mode!r} is unknown")
    a, b = _operands(op, x, other)
    if not _has_float(a, b):
        return store(op, _truncate_integers(op, a, b))
    return store(op, truncate(op, _stored(op, op.Div(a, b), b)))


@converter("aten::floor_divide", "aten::floor_divide.Scalar")
def floor_divide(op: Recorder, x: Any, other: Any) -> Value:
    """floor_divide(Tensor self, Tensor other) -> Tensor"""
    a, b = _operands(op, x, other)
    return store(op, floor_quotient(op, a, b))


@converter("aten::remainder.Tensor", "aten::remainder.Scalar", "aten::remainder.Scalar_Tensor")
def remainder(op: Recorder, x: Any, other: Any) -> Value:
    """remainder.Tensor(Tensor self, Tensor other) -> Tensor"""
    a, b = _operands(op, x, _rounded(op, other))
    return store(op, floor_remainder(op, a, b))


@converter("aten::fmod.Tensor", "aten::fmod.Scalar")
def fmod(op: Recorder, x: Any, other: Any) -> Value:
    """fmod.Tensor(Tensor self, Tensor other) -> Tensor"""
    a, b = _operands(op, x, _rounded(op, other))
    if _has_float(a, b):
        return store(op, op.Mod(a, b, fmod=1))
    # ORT's Mod of this kind goes through float64.
    return store(op, op.Sub(a, op.Mul(_truncate_integers(op, a, b), b)))


def _operands(op: Recorder, x: Any, other: Any) -> tuple[Any, Any]:
    """Both in the type that torch computes in: that of the result, 16 bits widened; the first one
    is rounded before, the second one is taken as it is.

    NOTE: not every torch tags all of these operators as elementwise, which would do it.
    """
    dtype = ir.DataType.FLOAT if op.dtype in HALVES else op.dtype
    x = _rounded(op, x)
    a, b = (v if isinstance(v, Value) else _in_type(v, dtype) for v in (x, other))
    if not isinstance(a, Value) and not isinstance(b, Value):
        a = op.constant(a, dtype)
    return tuple(op.cast(v, dtype) if isinstance(v, Value) else v for v in (a, b))  # type: ignore[return-value]


def _rounded(op: Recorder, operand: Any) -> Any:
    """An operand with the digits that the type of a 16-bit result has."""
    if op.dtype not in HALVES:
        return operand
    if not isinstance(operand, Value):
        return rounded(operand, op.dtype)
    return store(op, operand)


def _in_type(number: Any, dtype: ir.DataType) -> Any:
    """A Python number as one of a type."""
    return float(number) if dtype.is_floating_point() else int(number)


@converter("aten::gcd", "prims::gcd")
def gcd(op: Recorder, x: Value, other: Value) -> Value:
    """gcd(Tensor self, Tensor other) -> Tensor"""
    a, b = (_size(op, v) for v in (x, other))
    a, b = op.Add(a, op.Mul(b, 0)), op.Add(b, op.Mul(a, 0))  # of one shape
    meta = op.result.to(torch.int64)

    def step(inner: Recorder, given: Sequence[Value]) -> Sequence[Any]:
        divisor, number = given
        is_done = inner.Equal(divisor, 0)
        safe = inner.Where(is_done, 1, divisor)
        rest = inner.Sub(number, inner.Mul(inner.Div(number, safe), safe))
        return [has_any(inner, rest), rest, inner.Where(is_done, number, divisor)]

    found = loop(op, has_any(op, a), [a, b], [meta, meta], step)
    return op.cast(found[1], op.dtype)


def _size(op: Recorder, x: Value) -> Value:
    """The size of each number, of int64; the lowest number of a type is its own, as in torch.

    NOTE: none of the divisions of Euclid's algorithm is that of the lowest number by -1, which
    would end the process: a divisor is no more than -1 after the first one.
    """
    size = op.Abs(op.cast(op.cast(x, op.dtype), ir.DataType.INT64))
    return op.cast(op.cast(size, op.dtype), ir.DataType.INT64)
