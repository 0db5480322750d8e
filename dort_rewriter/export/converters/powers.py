"""Powers, roots, exponentials and logarithms that ONNX has no operator for."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import onnx_ir as ir

from dort_rewriter.export.converters.opmath import (
    HALVES,
    cast_like,
    is_float,
    is_narrow,
    like,
    store,
    to_double,
    wide_converter,
    widen,
)
from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import Refused, converter
from dort_rewriter.graph.values import Value


def _repeat(op: Recorder, x: Any, exponent: int) -> Any:
    """x multiplied by itself, by squaring: as exact as the type is."""
    result = None
    while True:
        if exponent & 1:
            result = x if result is None else op.Mul(result, x)
        exponent >>= 1
        if not exponent:
            return result
        x = op.Mul(x, x)


def _one(op: Recorder, x: Value) -> Value:
    """Ones of the shape of a tensor."""
    return op.Expand(cast_like(op, 1, x), op.sizes(x))


def integer_power(op: Recorder, base: Any, exponent: Any) -> Value:
    """Base ** exponent of integers: exact, where ORT's Pow goes through float64."""
    if not isinstance(exponent, Value):
        return _repeat(op, base, exponent) if exponent else _one(op, base)
    # The lower bits of products of int64 are those of products of narrower integers.
    dtype = exponent.dtype or op.dtype
    bits = int(dtype.bitwidth) - int(dtype.is_signed())
    square, places = op.cast(base, ir.DataType.INT64), op.cast(exponent, ir.DataType.INT64)
    is_odd = op.Equal(op.Mod(places, 2), 1)
    inverse = op.Where(
        op.Equal(square, 1), 1, op.Where(op.Equal(square, -1), op.Where(is_odd, -1, 1), 0)
    )
    result: Any = 1
    for i in range(bits):
        is_set = op.Equal(op.Mod(op.Div(places, 1 << i), 2), 1)
        result = op.Mul(op.Where(is_set, square, 1), result)
        square = op.Mul(square, square) if i + 1 < bits else square
    return op.cast(op.Where(op.Less(places, 0), inverse, result), dtype)


@converter("aten::pow.Tensor_Scalar")
def pow_scalar(op: Recorder, x: Value, exponent: Any) -> Value:
    """pow.Tensor_Scalar(Tensor self, Scalar exponent) -> Tensor"""
    if isinstance(exponent, Value):
        return pow_tensor(op, x, like(op, exponent, x))
    if not is_float(x):
        if exponent < 0:
            raise Refused("integers to a negative power")
        wide = op.cast(x, ir.DataType.INT64)  # whose products every onnxruntime has
        return store(op, integer_power(op, wide, int(exponent)))
    wide = widen(op, x)
    if x.dtype == ir.DataType.BFLOAT16 and exponent in (3, -2):  # torch rounds the square as well
        square = op.cast(op.Mul(wide, wide), x.dtype)
        return op.Mul(square, x) if exponent == 3 else op.Reciprocal(square)
    # NOTE: chains of products are several times faster than Pow, and as exact.
    if exponent in (0, 1, 2, 3, 4):
        return store(op, integer_power(op, wide, int(exponent)))
    # NOTE: of -0.0 and of minus infinity a root is no power; of float16 torch takes the power.
    if exponent == 0.5 and x.dtype != ir.DataType.FLOAT16:
        return op.Sqrt(x)
    if exponent == -0.5 and x.dtype != ir.DataType.FLOAT16:
        return store(op, op.Reciprocal(op.Sqrt(wide)))
    if exponent in (-1, -2):
        return store(op, op.Reciprocal(integer_power(op, wide, -int(exponent))))
    return store(op, op.Pow(wide, widen(op, cast_like(op, exponent, x))))


@converter("aten::pow.Tensor_Tensor", "aten::pow.Scalar")
def pow_tensor(op: Recorder, x: Any, exponent: Value) -> Value:
    """pow.Tensor_Tensor(Tensor self, Tensor exponent) -> Tensor"""
    base = cast_like(op, x, exponent)
    if not is_float(exponent):
        return integer_power(op, base, exponent)
    return store(op, op.Pow(widen(op, base), widen(op, exponent)))


@wide_converter("aten::rsqrt")
def rsqrt(op: Recorder, x: Value) -> Value:
    """rsqrt(Tensor self) -> Tensor"""
    return op.Reciprocal(op.Sqrt(x))


@wide_converter("aten::exp2")
def exp2(op: Recorder, x: Value) -> Value:
    """exp2(Tensor self) -> Tensor"""
    return op.Pow(cast_like(op, 2, x), x)


@wide_converter("aten::expm1")
def expm1(op: Recorder, x: Value) -> Value:
    """expm1(Tensor self) -> Tensor"""
    power = op.Exp(x)
    # exp(x) - 1 = tanh(x / 2) * (exp(x) + 1), which keeps the digits of a small x. Far below zero it
    # rounds past -1, of which there is no logarithm.
    near = op.Mul(op.Tanh(op.Mul(x, 0.5)), op.Add(power, 1.0))
    least = op.Where(op.Less(x, -0.5), op.Sub(power, 1.0), -1.0)
    return op.Max(near, least)


@wide_converter("aten::log1p")
def log1p(op: Recorder, x: Value) -> Value:
    """log1p(Tensor self) -> Tensor"""
    return log1p_curve(op, x)


def log1p_curve(op: Recorder, x: Value) -> Value:
    """log(1 + x), of float32 or float64."""
    y = op.Add(x, 1.0)
    large = op.Log(y)
    # The rounding of 1 + x takes digits from a small x, of which the ratio knows.
    ratio = op.Where(op.Equal(y, 1.0), 1.0, op.Div(large, op.Sub(y, 1.0)))
    return op.Mul(op.Min(x, 1.0), op.Where(op.Less(x, 1.0), ratio, large))


def softplus_curve(op: Recorder, x: Value) -> Value:
    """log(1 + exp(x)). NOTE: ORT's Softplus of float64 overflows, and is zero in the tail."""
    if x.dtype != ir.DataType.DOUBLE:
        return op.Softplus(x)
    size = op.Abs(x)  # NOTE: 1.19's Exp of float64 is never zero
    tail = op.Where(op.Greater(size, 745.0), 0.0, op.Exp(op.Neg(size)))
    return op.Add(op.Max(x, 0.0), log1p_curve(op, tail))


@converter("aten::sigmoid")
def logistic(op: Recorder, x: Value) -> Value:
    """sigmoid(Tensor self) -> Tensor"""
    if x.dtype != ir.DataType.DOUBLE:
        return op.Sigmoid(x)
    # NOTE: ORT's kernel takes the tail from one.
    return op.Reciprocal(op.Add(op.Exp(op.Neg(x)), 1.0))


def _times_logarithm(logarithm: Callable[[Recorder, Value], Value]) -> Callable[..., Value]:
    """A factor times a logarithm, zero where the factor is; torch keeps 16 bits of the logarithm."""

    def convert(op: Recorder, x: Any, other: Any) -> Value:
        factor, argument = (widen(op, op.cast(v, op.dtype)) for v in (x, other))
        result = widen(op, store(op, logarithm(op, argument)))
        product = op.Where(op.Equal(factor, 0), 0, op.Mul(factor, result))
        return store(op, op.Where(op.IsNaN(argument), argument, product))

    return convert


_xlogy = _times_logarithm(lambda op, x: op.Log(x))
converter("aten::xlogy.Tensor", "aten::xlogy.Scalar_Self", "aten::xlogy.Scalar_Other")(_xlogy)
converter(
    "aten::special_xlog1py",
    "aten::special_xlog1py.self_scalar",
    "aten::special_xlog1py.other_scalar",
)(_times_logarithm(log1p_curve))


def _logarithm(base: int) -> Callable[..., Value]:
    """The logarithm of a base, of powers of it a whole number: who asks for it takes the floor."""

    def convert(op: Recorder, x: Value) -> Value:
        if x.dtype in HALVES:
            return store(op, op.Div(op.Log(widen(op, x)), math.log(base)))
        wide = op.cast(x, ir.DataType.DOUBLE)
        result = op.Div(op.Log(wide), math.log(base))
        if x.dtype == ir.DataType.DOUBLE:
            whole = op.Round(result)
            result = op.Where(op.Equal(op.Pow(cast_like(op, base, x), whole), x), whole, result)
        return store(op, result)

    return convert


for _base in (2, 10):
    converter(f"aten::log{_base}")(_logarithm(_base))


@converter("aten::logit")
def logit(op: Recorder, x: Value, eps: Any = None) -> Value:
    """logit(Tensor self, float? eps=None) -> Tensor"""
    kind, x = op.dtype, widen(op, x)

    def step(value: Value) -> Value:  # NOTE: torch keeps 16 bits of each
        return widen(op, op.cast(value, kind))

    if eps is not None:
        eps = widen(op, op.cast(eps, kind))
        # NOTE: not Clip, of which the upper bound wins where it is below the lower one.
        x = op.Where(op.Less(x, eps), eps, op.Min(x, step(op.Sub(1, eps))))
    return store(op, op.Log(step(op.Div(x, step(op.Sub(1.0, x))))))


@wide_converter("aten::logaddexp")
def logaddexp(op: Recorder, x: Value, other: Value) -> Value:
    """logaddexp(Tensor self, Tensor other) -> Tensor"""
    # Equal infinities have no difference.
    gap = op.Where(op.Equal(x, other), 0.0, op.Abs(op.Sub(x, other)))
    return op.Add(op.Max(x, other), softplus_curve(op, op.Neg(gap)))


@converter("aten::frexp.Tensor", when=is_narrow)
def frexp(op: Recorder, x: Value) -> tuple[Value, Value]:
    """frexp.Tensor(Tensor self) -> (Tensor mantissa, Tensor exponent)"""
    wide = to_double(op, x)
    # The logarithm may miss a power of two by one: the mantissa decides.
    exponent = op.Floor(op.Div(op.Log(op.Abs(wide)), math.log(2)))
    two = to_double(op, 2.0)
    mantissa = op.Div(wide, op.Pow(two, exponent))
    size = op.Abs(mantissa)
    off = op.Where(op.Less(size, 1.0), 0.0, to_double(op, 1.0))
    off = op.Where(op.GreaterOrEqual(size, 2.0), two, off)
    mantissa = op.Div(mantissa, op.Pow(two, off))
    # Of zero, infinities and NaN, torch returns themselves and 0.
    is_whole = op.Or(op.Or(op.Equal(wide, 0.0), op.IsInf(wide)), op.IsNaN(wide))
    exponent = op.Where(is_whole, 0.0, op.Add(exponent, off))
    return op.Where(is_whole, x, cast_like(op, mantissa, x)), op.cast(exponent, ir.DataType.INT32)
