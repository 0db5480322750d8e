"""Factors that are constants."""

from __future__ import annotations

import pytest

from dort_rewriter.optimize.patterns.standard.arithmetic import (
    DivToMul,
    MulMulMul,
    MulMulScalar,
    ScaleSmaller,
)
from tests.optimize.rewrites import assert_refuses, assert_rewrites

EXACT = {"rtol": 0.0, "atol": 0.0}


@pytest.mark.parametrize("kind", ["float", "double"])
def test_a_division_by_a_power_of_two(kind: str) -> None:
    """The same number, faster."""
    assert_rewrites(
        DivToMul,
        f"({kind}[N] x) => ({kind}[N] y) <{kind} c = {{-16}}> {{y = Div(x, c)}}",
        f"({kind}[N] x) => ({kind}[N] y) <{kind} c = {{-0.0625}}> {{y = Mul(x, c)}}",
        **EXACT,
    )


@pytest.mark.parametrize("number", ["3", "0", "1e-30"])
def test_another_division_is_rounded_differently(number: str) -> None:
    """One third is no number of float32; a division by zero is infinity."""
    assert_refuses(
        DivToMul,
        f"(float[N] x) => (float[N] y) <float c = {{{number}}}> {{y = Div(x, c)}}",
        "the divisor is no power of two",
    )


def test_a_division_that_adds_an_axis() -> None:
    """A number would not."""
    assert_refuses(
        DivToMul,
        "(float x) => (float[1] y) <float[1] c = {2}> {y = Div(x, c)}",
        "the divisor makes the result larger",
    )


def test_integers_are_divided() -> None:
    """7 / 2 is 3."""
    assert_refuses(DivToMul, "(int64[N] x) => (int64[N] y) <int64 c = {2}> {y = Div(x, c)}")


def test_two_factors_are_one() -> None:
    """One of them is a power of two."""
    assert_rewrites(
        MulMulScalar,
        """(float[N] x) => (float[N] y) <float c = {3}, float[1] d = {0.5}> {
            a = Mul(c, x)
            y = Mul(a, d)
        }""",
        "(float[N] x) => (float[N] y) <float e = {1.5}> {y = Mul(x, e)}",
        **EXACT,
    )


def test_two_factors_that_would_be_rounded() -> None:
    """0.1 and 0.3 have a product that is no number of float32."""
    assert_refuses(
        MulMulScalar,
        """(float[N] x) => (float[N] y) <float c = {0.1}, float d = {0.3}> {
            a = Mul(x, c)
            y = Mul(a, d)
        }""",
        "neither factor is a power of two",
    )


def test_an_inner_product_that_is_needed() -> None:
    """Nothing would be won."""
    assert_refuses(
        MulMulScalar,
        """(float[N] x) => (float[N] y, float[N] a) <float c = {2}> {
            a = Mul(x, c)
            y = Mul(a, c)
        }""",
        "the inner product is needed",
    )


def test_factors_meet_across_a_product() -> None:
    """The outer one is a power of two."""
    assert_rewrites(
        MulMulMul,
        """(float[N] x, float[N] z) => (float[N] y) <float c = {3}, float d = {0.5}> {
            a = Mul(x, c)
            b = Mul(z, a)
            y = Mul(b, d)
        }""",
        """(float[N] x, float[N] z) => (float[N] y) <float e = {1.5}> {
            a = Mul(x, e)
            y = Mul(a, z)
        }""",
        **EXACT,
    )


def test_factors_that_would_be_rounded_stay_apart() -> None:
    """The product between is rounded: only a power of two may pass it."""
    assert_refuses(
        MulMulMul,
        """(float[N] x, float[N] z) => (float[N] y) <float c = {2}, float d = {3}> {
            a = Mul(x, c)
            b = Mul(z, a)
            y = Mul(b, d)
        }""",
        "the outer factor is no power of two",
    )


def test_the_smaller_operand_is_scaled() -> None:
    """It has fewer elements."""
    assert_rewrites(
        ScaleSmaller,
        """(float[N,1] x, float[N,4] z) => (float[N,4] y) <float c = {2}> {
            a = Mul(z, c)
            y = Mul(a, x)
        }""",
        """(float[N,1] x, float[N,4] z) => (float[N,4] y) <float c = {2}> {
            a = Mul(x, c)
            y = Mul(a, z)
        }""",
        **EXACT,
    )


def test_equal_operands_stay() -> None:
    """There is nothing to win."""
    assert_refuses(
        ScaleSmaller,
        """(float[N,4] x, float[N,4] z) => (float[N,4] y) <float c = {2}> {
            a = Mul(z, c)
            y = Mul(a, x)
        }""",
    )


@pytest.mark.parametrize(
    ("number", "outputs", "reason"),
    [
        ("3", "", "the factor is no power of two"),
        ("2", ", float[N,4] a", "the scaled operand is needed"),
    ],
)
def test_a_factor_that_stays(number: str, outputs: str, reason: str) -> None:
    """It would be rounded, or computed twice."""
    assert_refuses(
        ScaleSmaller,
        f"""(float[N,1] x, float[N,4] z) => (float[N,4] y{outputs}) <float c = {{{number}}}> {{
            a = Mul(z, c)
            y = Mul(a, x)
        }}""",
        reason,
    )
