"""Quotients and remainders, of tensors and of sizes: exact for every pair of signs.

ONNX divides integers towards zero; its Mod follows the divisor's sign, or the dividend's with fmod.
"""

from __future__ import annotations

from typing import Any

from dort_rewriter.export.converters.opmath import cast_like, is_float, store, widen
from dort_rewriter.export.converters.rounding import truncate
from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import Refused, converter
from dort_rewriter.graph.values import Value

__all__ = ["floor_quotient", "floor_remainder"]


def _has_float(*values: Any) -> bool:
    return any(is_float(v) for v in values)


def floor_quotient(op: Recorder, a: Any, b: Any) -> Value:
    """Return a // b as Python and torch round it."""
    if not _has_float(a, b):
        # NOTE: (a - a mod b) / b overflows near the bounds of the type; this does not.
        quotient = op.Div(a, b)
        is_short = op.Not(op.Equal(op.Mod(a, b), op.Sub(a, op.Mul(quotient, b))))
        return op.Sub(quotient, op.Cast(is_short, to=quotient.dtype))
    # NOTE: Floor(Div(a, b)) is wrong where a / b rounds up to an integer, as in 1.0 // 0.1.
    rest = op.Mod(a, b, fmod=1)
    is_short = op.And(op.Not(op.Equal(rest, 0)), op.Xor(op.Less(b, 0), op.Less(rest, 0)))
    exact = op.Div(op.Sub(a, rest), b)
    quotient = op.Round(op.Sub(exact, op.Cast(is_short, to=exact.dtype)))
    return op.Where(op.Equal(b, 0), op.Div(a, b), quotient)


def floor_remainder(op: Recorder, a: Any, b: Any) -> Value:
    """Return a % b, of the sign of b."""
    if not _has_float(a, b):
        return op.Mod(a, b)
    rest = op.Mod(a, b, fmod=1)
    is_opposite = op.And(op.Not(op.Equal(rest, 0)), op.Xor(op.Less(b, 0), op.Less(rest, 0)))
    return op.Where(is_opposite, op.Add(rest, b), rest)


@converter("aten::div.Tensor", "aten::div.Scalar")
def div(op: Recorder, x: Value, other: Any) -> Value:
    """div.Tensor(Tensor self, Tensor other) -> Tensor"""
    if not op.dtype.is_floating_point():  # torch 2.8, symbolic sizes
        raise Refused("its recorded result is made of integers, which is not what torch computes")
    return op.Div(x, other)


@converter("aten::div.Tensor_mode", "aten::div.Scalar_mode")
def div_mode(op: Recorder, x: Value, other: Any, *, rounding_mode: str | None) -> Value:
    """div.Tensor_mode(Tensor self, Tensor other, *, str? rounding_mode) -> Tensor"""
    if rounding_mode is None:
        return div(op, x, other)
    if rounding_mode == "floor":
        return floor_divide(op, x, other)
    if rounding_mode != "trunc":
        raise Refused(f"rounding_mode={rounding_mode!r} is unknown")
    a, b = widen(op, x), widen(op, other)
    quotient = op.Div(a, b)
    return store(op, truncate(op, quotient) if _has_float(a, b) else quotient)


@converter("aten::floor_divide", "aten::floor_divide.Scalar")
def floor_divide(op: Recorder, x: Value, other: Any) -> Value:
    """floor_divide(Tensor self, Tensor other) -> Tensor"""
    a, b = _operands(op, x, other)
    return store(op, floor_quotient(op, a, b))


@converter("aten::remainder.Tensor", "aten::remainder.Scalar", "aten::remainder.Scalar_Tensor")
def remainder(op: Recorder, x: Any, other: Any) -> Value:
    """remainder.Tensor(Tensor self, Tensor other) -> Tensor"""
    a, b = _operands(op, x, other)
    return store(op, floor_remainder(op, a, b))


@converter("aten::fmod.Tensor", "aten::fmod.Scalar")
def fmod(op: Recorder, x: Value, other: Any) -> Value:
    """fmod.Tensor(Tensor self, Tensor other) -> Tensor"""
    if _has_float(x, other):
        return op.Mod(x, other, fmod=1)
    return op.Sub(x, op.Mul(op.Div(x, other), other))  # ORT's Mod goes through float64


def _operands(op: Recorder, x: Any, other: Any) -> tuple[Any, Any]:
    """Return both in one type: floor_divide is not tagged as elementwise by every torch."""
    a, b = widen(op, x), widen(op, other)
    if not isinstance(a, Value):
        return cast_like(op, a, b), b
    return a, cast_like(op, b, a)
