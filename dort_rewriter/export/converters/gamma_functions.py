"""The logarithm of the gamma function and its derivatives.

Stirling's series serves numbers from ``SHIFT`` on; smaller ones are moved there by the recurrence,
negative ones are reflected.
"""

from __future__ import annotations

import math

from dort_rewriter.export.converters.opmath import (
    cosine,
    double_converter,
    horner,
    is_narrow,
    store,
    to_double,
)
from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import Refused, converter
from dort_rewriter.graph.values import Value

SHIFT = 8
BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6)
"""The numbers of even index, from 2 on."""
HIGHEST_ORDER = 12
"""Of polygamma: the formulas grow with it."""


def _reflected(op: Recorder, x: Value) -> tuple[Value, Value, Value]:
    """Where x is negative, 1 - x there (x elsewhere), and how far x is from an integer."""
    is_negative = op.Less(x, 0.0)
    return is_negative, op.Where(is_negative, op.Sub(1.0, x), x), op.Sub(x, op.Round(x))


def _log_gamma(op: Recorder, x: Value) -> Value:
    """The logarithm of the gamma function of positive numbers."""
    is_small = op.Less(x, float(SHIFT))
    shifted = op.Where(is_small, op.Add(x, float(SHIFT)), x)
    inverse = op.Reciprocal(shifted)
    terms = [b / ((2 * k + 1) * (2 * k + 2)) for k, b in enumerate(BERNOULLI)]
    series = op.Mul(inverse, horner(op, op.Mul(inverse, inverse), terms))
    main = op.Sub(op.Mul(op.Sub(shifted, 0.5), op.Sub(op.Log(shifted), 1.0)), 0.5)
    result = op.Add(op.Add(main, 0.5 * math.log(2 * math.pi)), series)
    factor = x
    for k in range(1, SHIFT):
        factor = op.Mul(factor, op.Add(x, float(k)))
    return op.Where(is_small, op.Sub(result, op.Log(factor)), result)


@double_converter("aten::lgamma")
def lgamma(op: Recorder, x: Value) -> Value:
    """lgamma(Tensor self) -> Tensor"""
    is_negative, positive, distance = _reflected(op, x)
    value = _log_gamma(op, positive)
    sine = op.Abs(op.Sin(op.Mul(distance, math.pi)))
    reflected = op.Sub(op.Sub(math.log(math.pi), op.Log(sine)), value)
    result = op.Where(is_negative, reflected, value)
    is_root = op.Or(op.Equal(x, 1.0), op.Equal(x, 2.0))  # where rounding would be all there is
    result = op.Where(is_root, 0.0, result)
    return op.Where(op.IsInf(x), math.inf, result)


def _digamma(op: Recorder, x: Value) -> Value:
    """The digamma function of positive numbers."""
    shifted = op.Add(x, float(SHIFT))
    inverse = op.Reciprocal(shifted)
    terms = [b / (2 * k + 2) for k, b in enumerate(BERNOULLI)]
    square = op.Mul(inverse, inverse)
    series = op.Add(op.Mul(inverse, 0.5), op.Mul(square, horner(op, square, terms)))
    result = op.Sub(op.Log(shifted), series)
    for k in range(SHIFT):
        result = op.Sub(result, op.Reciprocal(op.Add(x, float(k)) if k else x))
    return result


@double_converter("aten::digamma", "aten::special_digamma")
def digamma(op: Recorder, x: Value) -> Value:
    """digamma(Tensor self) -> Tensor"""
    is_negative, positive, distance = _reflected(op, x)
    value = _digamma(op, positive)
    # NOTE: torch gives NaN for a negative integer, and the infinity of the other side for zero.
    slope = op.Div(op.Div(_cosine_of_turn(op, distance), _sine_of_turn(op, distance)), 1 / math.pi)
    slope = op.Where(op.Equal(distance, 0.0), math.nan, slope)
    return op.Where(is_negative, op.Sub(value, slope), value)


def _sine_of_turn(op: Recorder, x: Value) -> Value:
    return op.Sin(op.Mul(x, math.pi))


def _cosine_of_turn(op: Recorder, x: Value) -> Value:
    return cosine(op, op.Mul(x, math.pi))


@converter("aten::polygamma", when=is_narrow)
def polygamma(op: Recorder, n: int, x: Value) -> Value:
    """polygamma(int n, Tensor self) -> Tensor"""
    if n == 0:
        return digamma(op, x)
    if not 0 < n <= HIGHEST_ORDER:
        raise Refused(f"polygamma of order {n}: up to {HIGHEST_ORDER} are converted")
    x = to_double(op, x)
    is_negative, positive, distance = _reflected(op, x)
    value = _polygamma(op, n, positive)
    cotangent = op.Div(_cosine_of_turn(op, distance), _sine_of_turn(op, distance))
    derivative = horner(op, cotangent, [math.pi ** (n + 1) * c for c in _cotangent(n)])
    mirrored = op.Sub(op.Neg(value) if n % 2 else value, derivative)
    return store(op, op.Where(is_negative, mirrored, value))


def _cotangent(order: int) -> list[int]:
    """The derivative of the cotangent as a polynomial in the cotangent."""
    terms = [0, 1]
    for _ in range(order):
        slope = [k * c for k, c in enumerate(terms)][1:]
        terms = [-(a + b) for a, b in zip([*slope, 0, 0], [0, 0, *slope], strict=True)]
    return terms


def _polygamma(op: Recorder, n: int, x: Value) -> Value:
    """The derivative of order n of digamma for positive numbers: a sum over 1/(x+k)^(n+1)."""
    far = op.Reciprocal(op.Add(x, float(SHIFT + n)))
    # Euler and Maclaurin's formula for the rest of the sum.
    terms, rising = [1 / n, 0.5], float(n + 1)
    for k, bernoulli in enumerate(BERNOULLI):
        j = 2 * k + 2
        terms += [bernoulli * rising / math.factorial(j), 0.0]
        rising *= (n + j) * (n + j + 1)
    total = op.Mul(op.Pow(far, float(n)), horner(op, far, terms))
    for k in range(SHIFT + n):
        total = op.Add(total, op.Pow(op.Add(x, float(k)) if k else x, -float(n + 1)))
    sign = 1.0 if n % 2 else -1.0
    return op.Mul(total, sign * math.factorial(n))
