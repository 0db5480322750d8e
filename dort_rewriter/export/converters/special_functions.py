"""Special functions: of errors, gamma and its derivatives, Bessel's and Airy's."""

from __future__ import annotations

import math

import numpy as np

from dort_rewriter.export.converters import expansions
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

# -- the error function's complement, its scaled form, and the inverses -------------------------

# All are made of one expansion: erfcx(x) = exp(x^2) erfc(x), which neither overflows nor
# vanishes for positive numbers.

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


# -- the logarithm of the gamma function and its derivatives ------------------------------------

# Stirling's series serves numbers from ``SHIFT`` on; smaller ones are moved there by the
# recurrence, negative ones are reflected.

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
    slope = op.Div(_cotangent_of_turn(op, distance), 1 / math.pi)
    slope = op.Where(op.Equal(distance, 0.0), math.nan, slope)
    return op.Where(is_negative, op.Sub(value, slope), value)


def _cotangent_of_turn(op: Recorder, x: Value) -> Value:
    return op.Div(cosine(op, op.Mul(x, math.pi)), op.Sin(op.Mul(x, math.pi)))


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
    cotangent = _cotangent_of_turn(op, distance)
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


# -- Bessel functions ---------------------------------------------------------------------------

# Each is expanded on both sides of an edge, where the far side takes its asymptotic form.

_MOST = float(np.finfo(np.float32).max)
_EDGE = 8.0
"""Of J, Y and I."""


def _squared(op: Recorder, x: Value, edge: float) -> Value:
    """u = 2 (x / edge)^2 - 1."""
    return op.Sub(op.Mul(op.Mul(x, x), 2 / edge**2), 1.0)


def _inverted(op: Recorder, x: Value, edge: float) -> Value:
    """u = 2 edge / x - 1."""
    return op.Sub(op.Div(2 * edge, x), 1.0)


# -- modified: I and K --------------------------------------------------------------------------


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


# -- plain: J and Y -----------------------------------------------------------------------------


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


# -- Airy ---------------------------------------------------------------------------------------

_AIRY_EDGE = 2.5
_AIRY_ZETA = 2 / 3 * _AIRY_EDGE**1.5


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
    # Outside, where the polynomial could overflow, it is that at the border.
    near = op.Min(op.Max(op.Mul(x, 1 / _AIRY_EDGE), -1.0), 1.0)
    middle = horner(op, near, expansions.AIRY_NEAR)
    value = op.Where(op.Greater(x, _AIRY_EDGE), decay, middle)
    value = op.Where(op.Less(x, -_AIRY_EDGE), wave, value)
    # NOTE: of infinity torch makes NaN, in every wave but that of sin(x) / x.
    return op.Where(op.Or(op.IsNaN(x), op.IsInf(x)), math.nan, value)
