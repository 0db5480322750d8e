"""Powers with a small constant exponent."""

from __future__ import annotations

import numpy as np
import pytest

from dort_rewriter.optimize.patterns.standard.arithmetic import PowToMul
from tests.optimize.rewrites import assert_refuses, assert_rewrites

POSITIVE = {"x": np.array([0.25, 1.5, 3.0], dtype=np.float32)}


@pytest.mark.parametrize(
    ("exponent", "nodes"),
    [
        ("2.0", "y = Mul(x, x)"),
        ("3.0", "a = Mul(x, x) y = Mul(a, x)"),
        ("4.0", "a = Mul(x, x) y = Mul(a, a)"),
        ("-1.0", "y = Reciprocal(x)"),
    ],
)
def test_pow_with_a_small_exponent(exponent: str, nodes: str) -> None:
    """Pow is many times slower than what it stands for."""
    assert_rewrites(
        PowToMul,
        f"(float[3] x) => (float[3] y) <float e = {{{exponent}}}> {{y = Pow(x, e)}}",
        f"(float[3] x) => (float[3] y) {{{nodes}}}",
        inputs=POSITIVE,
    )


@pytest.mark.parametrize(
    ("exponent", "nodes"),
    [
        ("1.5", "a = Sqrt(v) y = Mul(v, a)"),
        ("0.5", "y = Sqrt(v)"),
        ("-0.5", "a = Sqrt(v) y = Reciprocal(a)"),
    ],
)
@pytest.mark.parametrize(
    "square", ["q = Mul(x, x)", "q = Pow(x, two)", "a0 = Abs(x) q = Add(a0, eps)", "q = Exp(x)"]
)
def test_a_root_of_what_is_not_below_zero(exponent: str, nodes: str, square: str) -> None:
    """The variance of a norm, and the like."""
    constants = f"<float e = {{{exponent}}}, float eps = {{0.001}}, float two = {{2.0}}>"
    v = f"{square} m = ReduceMean<keepdims=1>(q) v = Add(m, eps)"
    left = v.replace("Pow(x, two)", "Mul(x, x)")
    assert_rewrites(
        PowToMul,
        f"(float[3] x) => (float[1] y) {constants} {{{v} y = Pow(v, e)}}",
        f"(float[3] x) => (float[1] y) <float eps = {{0.001}}> {{{left} {nodes}}}",
        inputs=POSITIVE,
        count=1 + (left != v),
    )


@pytest.mark.parametrize("exponent", ["1.5", "0.5", "-0.5"])
@pytest.mark.parametrize("node", ["", "x = Neg(z)", "x = Relu(z)", "x = Add(z, z)"])
def test_a_root_of_minus_infinity_is_left_alone(exponent: str, node: str) -> None:
    """Powers of it are infinity or zero, and those of -0.0 are never below zero; roots are."""
    given = "z" if node else "x"
    assert_refuses(
        PowToMul,
        f"(float[3] {given}) => (float[3] y) <float e = {{{exponent}}}> {{{node} y = Pow(x, e)}}",
        "a root of what may be -0.0 or minus infinity",
    )


def test_another_exponent_is_left_alone() -> None:
    """There is no formula."""
    assert_refuses(
        PowToMul,
        "(float[3] x) => (float[3] y) <float e = {2.5}> {y = Pow(x, e)}",
        "the exponent is none of 1, 2, 3, 4, 1/2, 3/2, -1, -1/2",
    )


def test_a_root_of_integers_is_left_alone() -> None:
    """Sqrt takes no integers."""
    assert_refuses(
        PowToMul,
        "(int64[3] x) => (int64[3] y) <float e = {0.5}> {y = Pow(x, e)}",
        "a root of integers",
    )
