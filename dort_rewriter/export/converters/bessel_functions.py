"""Bessel functions, plain and modified, and Airy's.

Each is expanded on both sides of an edge, where the far side takes its asymptotic form.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dort_rewriter.export.converters import expansions
from dort_rewriter.export.converters.opmath import cosine, double_converter, horner
from dort_rewriter.export.recorder import Recorder
from dort_rewriter.graph.values import Value

_MOST = float(np.finfo(np.float32).max)
_EDGE = 8.0
"""Of J, Y and I."""


def _squared(op: Recorder, x: Value, edge: float) -> Value:
    """u = 2 (x / edge)^2 - 1."""
    return op.Sub(op.Mul(op.Mul(x, x), 2 / edge**2), 1.0)


def _inverted(op: Recorder, x: Value, edge: float) -> Value:
    """u = 2 edge / x - 1."""
    return op.Sub(op.Div(2 * edge, x), 1.0)


# -- modified: I and K -----------------------------------------------------------------------------


def _scaled_i(op: Recorder, x: Value, order: int) -> Value:
    """exp(-x) I(x) of numbers that are not negative."""
    terms = ((expansions.I0_NEAR, expansions.I0_FAR), (expansions.I1_NEAR, expansions.I1_FAR))
    near, far = terms[order]
    small = horner(op, op.Sub(op.Mul(x, 0.25), 1.0), near)
    small = op.Mul(small, x) if order else small
    large = op.Div(horner(op, _inverted(op, x, _EDGE), far), op.Sqrt(x))
    return op.Where(op.LessOrEqual(x, _EDGE), small, large)


def _with_sign(op: Recorder, x: Value, value: Value, order: int) -> Value:
    return op.Where(op.Less(x, 0.0), op.Neg(value), value) if order else value


def _i(op: Recorder, x: Value, order: int, scaled: bool) -> Value:
    size = op.Abs(x)
    value = _scaled_i(op, size, order)
    value = value if scaled else op.Mul(value, op.Exp(size))
    return _with_sign(op, x, value, order)


def _k(op: Recorder, x: Value, order: int, scaled: bool) -> Value:
    """K, or exp(x) K: infinite at 0, NaN below."""
    grown = op.Exp(x)
    log_i = op.Mul(op.Log(op.Mul(x, 0.5)), op.Mul(_scaled_i(op, x, order), grown))
    u = _squared(op, x, 2.0)
    if order:
        small = op.Add(log_i, op.Div(horner(op, u, expansions.K1_NEAR), x))
    else:
        small = op.Sub(horner(op, u, expansions.K0_NEAR), log_i)
    far = expansions.K1_FAR if order else expansions.K0_FAR
    large = op.Div(horner(op, _inverted(op, x, 2.0), far), op.Sqrt(x))
    if scaled:
        small = op.Mul(small, grown)
    else:
        large = op.Mul(large, op.Exp(op.Neg(x)))
    value = op.Where(op.LessOrEqual(x, 2.0), small, large)
    return op.Where(op.Equal(x, 0.0), math.inf, value)


# -- plain: J and Y --------------------------------------------------------------------------------


def _near_j(op: Recorder, x: Value, order: int) -> Value:
    """J up to the edge."""
    near = expansions.J1_NEAR if order else expansions.J0_NEAR
    value = horner(op, _squared(op, x, _EDGE), near)
    return op.Mul(value, x) if order else value


def _waves(op: Recorder, x: Value, order: int) -> tuple[Value, Value]:
    """J and Y beyond the edge: sqrt(2 / (pi x)) (P cos - Q sin, P sin + Q cos)."""
    terms = ((expansions.P0, expansions.Q0), (expansions.P1, expansions.Q1))
    p_terms, q_terms = terms[order]
    v = op.Div(_EDGE, x)
    u = op.Sub(op.Mul(op.Mul(v, v), 2.0), 1.0)
    p, q = horner(op, u, p_terms), op.Mul(v, horner(op, u, q_terms))
    phase = op.Sub(x, math.pi * (2 * order + 1) / 4)
    sine, cos = op.Sin(phase), cosine(op, phase)
    size = op.Sqrt(op.Div(2 / math.pi, x))
    j = op.Mul(size, op.Sub(op.Mul(p, cos), op.Mul(q, sine)))
    return j, op.Mul(size, op.Add(op.Mul(p, sine), op.Mul(q, cos)))


def _j(op: Recorder, x: Value, order: int) -> Value:
    size = op.Abs(x)
    value = op.Where(
        op.LessOrEqual(size, _EDGE), _near_j(op, size, order), _waves(op, size, order)[0]
    )
    if order:  # -0.0 too
        value = op.Where(op.Equal(x, 0.0), x, _with_sign(op, x, value, order))
    return value


def _y(op: Recorder, x: Value, order: int) -> Value:
    """Y: minus infinity at 0, NaN below."""
    log_j = op.Mul(op.Log(x), _near_j(op, x, order))
    rest = horner(op, _squared(op, x, _EDGE), expansions.Y1_NEAR if order else expansions.Y0_NEAR)
    if order:
        log_j, rest = op.Sub(log_j, op.Reciprocal(x)), op.Mul(rest, x)
    small = op.Add(op.Mul(log_j, 2 / math.pi), rest)
    value = op.Where(op.LessOrEqual(x, _EDGE), small, _waves(op, x, order)[1])
    # torch divides in float32, where one by a denormal number is infinite.
    is_infinite = op.Greater(op.Reciprocal(op.Abs(x)), _MOST) if order else op.Equal(x, 0.0)
    value = op.Where(is_infinite, -math.inf, value)
    return op.Where(op.Less(x, 0.0), math.nan, value)


for _names, _formula, *_how in (
    ("aten::i0 aten::special_i0 aten::special_modified_bessel_i0", _i, 0, False),
    ("aten::special_i0e", _i, 0, True),
    ("aten::special_i1 aten::special_modified_bessel_i1", _i, 1, False),
    ("aten::special_i1e", _i, 1, True),
    ("aten::special_modified_bessel_k0", _k, 0, False),
    ("aten::special_modified_bessel_k1", _k, 1, False),
    ("aten::special_scaled_modified_bessel_k0", _k, 0, True),
    ("aten::special_scaled_modified_bessel_k1", _k, 1, True),
    ("aten::special_bessel_j0", _j, 0),
    ("aten::special_bessel_j1", _j, 1),
    ("aten::special_bessel_y0", _y, 0),
    ("aten::special_bessel_y1", _y, 1),
):
    double_converter(*_names.split())(lambda op, x, f=_formula, how=_how: f(op, x, *how))


@double_converter("aten::special_spherical_bessel_j0")
def spherical_j0(op: Recorder, x: Value) -> Value:
    """special_spherical_bessel_j0(Tensor x) -> Tensor"""
    value = op.Where(op.Equal(x, 0.0), 1.0, op.Div(op.Sin(x), x))
    return op.Where(op.IsInf(x), 0.0, value)


# -- Airy ------------------------------------------------------------------------------------------

_AIRY_EDGE = 2.5
_AIRY_ZETA = 2 / 3 * _AIRY_EDGE**1.5


def _bounded(op: Recorder, x: Value, coefficients: Sequence[float]) -> Value:
    """A polynomial where it holds; outside, where it could overflow, at the border."""
    return horner(op, op.Min(op.Max(x, -1.0), 1.0), coefficients)


@double_converter("aten::special_airy_ai")
def airy_ai(op: Recorder, x: Value) -> Value:
    """special_airy_ai(Tensor x) -> Tensor"""
    size = op.Max(op.Abs(x), _AIRY_EDGE)
    root = op.Sqrt(size)
    power = op.Mul(size, root)
    zeta = op.Mul(power, 2 / 3)
    quarter = op.Mul(op.Sqrt(root), math.sqrt(math.pi))
    w = op.Div(_AIRY_ZETA, zeta)
    decay = horner(op, op.Sub(op.Mul(w, 2.0), 1.0), expansions.AIRY_DECAY)
    decay = op.Div(op.Mul(op.Mul(decay, 0.5), op.Exp(op.Neg(zeta))), quarter)
    u = op.Sub(op.Mul(op.Mul(w, w), 2.0), 1.0)
    f, g = horner(op, u, expansions.AIRY_F), op.Mul(w, horner(op, u, expansions.AIRY_G))
    angle = op.Add(zeta, math.pi / 4)
    wave = op.Sub(op.Mul(f, op.Sin(angle)), op.Mul(g, cosine(op, angle)))
    wave = op.Div(wave, quarter)
    wave = op.Where(op.Greater(op.Mul(power, 2.0), _MOST), math.nan, wave)  # as in float32
    middle = _bounded(op, op.Mul(x, 1 / _AIRY_EDGE), expansions.AIRY_NEAR)
    value = op.Where(op.Greater(x, _AIRY_EDGE), decay, middle)
    value = op.Where(op.Less(x, -_AIRY_EDGE), wave, value)
    # NOTE: of infinity torch makes NaN, in every wave but that of sin(x) / x.
    return op.Where(op.Or(op.IsNaN(x), op.IsInf(x)), math.nan, value)
