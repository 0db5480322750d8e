"""The error function's complement, its scaled form, and the inverses.

All of them are made of one expansion: erfcx(x) = exp(x^2) erfc(x), which neither overflows nor
vanishes for positive numbers.
"""

from __future__ import annotations

import math

from dort_rewriter.export.converters import expansions
from dort_rewriter.export.converters.opmath import double_converter, horner
from dort_rewriter.export.recorder import Recorder
from dort_rewriter.graph.values import Value

_SMALL = 0.05
"""Below it, the inverse is its Taylor series: to 11 digits."""


def _scaled_complement(op: Recorder, x: Value) -> Value:
    """erfcx of numbers that are not negative, in float64."""
    t = op.Reciprocal(op.Add(op.Mul(x, 0.5), 1.0))
    u = op.Sub(op.Mul(t, 2.0), 1.0)
    return op.Mul(t, op.Exp(horner(op, u, expansions.ERFCX)))


@double_converter("aten::erfc", "aten::special_erfc")
def erfc(op: Recorder, x: Value) -> Value:
    """erfc(Tensor self) -> Tensor"""
    size = op.Abs(x)
    tail = op.Mul(_scaled_complement(op, size), op.Exp(op.Neg(op.Mul(x, x))))
    return op.Where(op.Less(x, 0.0), op.Sub(2.0, tail), tail)


@double_converter("aten::special_erfcx")
def erfcx(op: Recorder, x: Value) -> Value:
    """special_erfcx(Tensor self) -> Tensor"""
    scaled = _scaled_complement(op, op.Abs(x))
    reflected = op.Sub(op.Mul(op.Exp(op.Mul(x, x)), 2.0), scaled)
    return op.Where(op.Less(x, 0.0), reflected, scaled)


def _inverse_complement(op: Recorder, q: Value) -> Value:
    """The x >= 0 of which erfc is q, for q from 0 to 1: a guess, twice improved."""
    # The guess (Winitzki's) is right to 0.2 %; each step by Halley's rule triples the digits.
    a = 0.147
    log = op.Log(op.Mul(q, op.Sub(2.0, q)))
    half = op.Add(op.Mul(log, 0.5), 2 / (math.pi * a))
    root = op.Sqrt(op.Sub(op.Mul(half, half), op.Div(log, a)))
    x = op.Sqrt(op.Sub(root, half))
    for _ in range(2):
        excess = op.Sub(_scaled_complement(op, op.Abs(x)), op.Mul(q, op.Exp(op.Mul(x, x))))
        step = op.Mul(excess, math.sqrt(math.pi) / 2)
        x = op.Add(x, op.Div(step, op.Sub(1.0, op.Mul(x, step))))
    return op.Where(op.Equal(q, 0.0), math.inf, x)


@double_converter("aten::erfinv")
def erfinv(op: Recorder, x: Value) -> Value:
    """erfinv(Tensor self) -> Tensor"""
    size = op.Abs(x)
    # NOTE: near 0 the complement does not tell numbers apart.
    far = op.Mul(op.Sign(x), _inverse_complement(op, op.Sub(1.0, size)))
    terms = (1.0, math.pi / 12, 7 * math.pi**2 / 480, 127 * math.pi**3 / 40320)
    series = [math.sqrt(math.pi) / 2 * t for t in terms]
    near = op.Mul(x, horner(op, op.Mul(x, x), series))
    return op.Where(op.Less(size, _SMALL), near, far)


@double_converter("aten::special_ndtri")
def ndtri(op: Recorder, x: Value) -> Value:
    """special_ndtri(Tensor self) -> Tensor"""
    tail = op.Min(x, op.Sub(1.0, x))
    size = op.Mul(_inverse_complement(op, op.Mul(tail, 2.0)), math.sqrt(2))
    return op.Where(op.Less(x, 0.5), op.Neg(size), size)
