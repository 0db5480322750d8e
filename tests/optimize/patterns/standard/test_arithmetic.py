"""Arithmetic that changes nothing, or that one node can do for two."""

from __future__ import annotations

import numpy as np
import pytest

from dort_rewriter.optimize.patterns.standard.arithmetic import (
    AddNeg,
    CastCast,
    CastOpCast,
    DivToMul,
    MulMulMul,
    MulMulScalar,
    NeutralElement,
    ScaleSmaller,
    WhereConstant,
)
from tests.optimize.rewrites import assert_refuses, assert_rewrites


def test_a_wider_type_between_is_skipped() -> None:
    """float16 to float to double."""
    assert_rewrites(
        CastCast,
        """(float16[N] x) => (double[N] y) {
            a = Cast<to=1>(x)
            y = Cast<to=11>(a)
        }""",
        "(float16[N] x) => (double[N] y) {y = Cast<to=11>(x)}",
    )


def test_a_narrower_type_between_rounds() -> None:
    """float to float16 to float loses digits, and has to."""
    assert_refuses(
        CastCast,
        """(float[N] x) => (float[N] y) {
            a = Cast<to=10>(x)
            y = Cast<to=1>(a)
        }""",
        "the type between rounds",
    )


def test_a_type_that_comes_back_after_a_move() -> None:
    """The elements are moved in their own type."""
    assert_rewrites(
        CastOpCast,
        """(float16[2,3] x) => (float16[3,2] y) {
            a = Cast<to=1>(x)
            b = Transpose<perm=[1, 0]>(a)
            y = Cast<to=10>(b)
        }""",
        "(float16[2,3] x) => (float16[3,2] y) {y = Transpose<perm=[1, 0]>(x)}",
    )


def test_a_narrower_type_around_a_move_rounds() -> None:
    """The digits are lost before the move."""
    assert_refuses(
        CastOpCast,
        """(float[2,3] x) => (float[3,2] y) {
            a = Cast<to=10>(x)
            b = Transpose<perm=[1, 0]>(a)
            y = Cast<to=1>(b)
        }""",
        "the type between rounds",
    )


def test_a_moved_result_that_is_needed() -> None:
    """It would be moved twice."""
    assert_refuses(
        CastOpCast,
        """(float16[2,3] x) => (float16[3,2] y, float[3,2] b) {
            a = Cast<to=1>(x)
            b = Transpose<perm=[1, 0]>(a)
            y = Cast<to=10>(b)
        }""",
        "the result of the type between is needed",
    )


SPECIAL = {"x": np.array([np.nan, np.inf, -np.inf, 0.0], dtype=np.float32)}


@pytest.mark.parametrize(("operator", "number"), [("Add", 0), ("Sub", 0), ("Mul", 1), ("Div", 1)])
def test_a_number_that_changes_nothing(operator: str, number: int) -> None:
    """For NaN and infinities too."""
    assert_rewrites(
        NeutralElement,
        f"""(float[4] x) => (float[4] y) <float c = {{{number}}}> {{
            a = {operator}(x, c)
            y = Abs(a)
        }}""",
        "(float[4] x) => (float[4] y) {y = Abs(x)}",
        inputs=SPECIAL,
    )


@pytest.mark.parametrize(("operator", "number"), [("And", 1), ("Or", 0), ("Xor", 0)])
def test_a_truth_value_that_changes_nothing(operator: str, number: int) -> None:
    """On the left."""
    assert_rewrites(
        NeutralElement,
        f"""(bool[N] x) => (bool[N] y) <bool c = {{{number}}}> {{
            a = {operator}(c, x)
            y = Not(a)
        }}""",
        "(bool[N] x) => (bool[N] y) {y = Not(x)}",
    )


@pytest.mark.parametrize("node", ["Sub(c, x)", "Mul(x, c)", "Add(x, d)"])
def test_a_number_that_changes_something(node: str) -> None:
    """0 - x; 0 x, which is NaN for NaN; a constant that is not all zero."""
    assert_refuses(
        NeutralElement,
        f"(float[2] x) => (float[2] y) <float c = {{0}}, float[2] d = {{0, 1}}> {{y = {node}}}",
    )


def test_a_constant_that_broadcasts() -> None:
    """It makes the result larger."""
    assert_refuses(
        NeutralElement,
        "(float[1] x) => (float[2] y) <float[2] c = {0, 0}> {y = Add(x, c)}",
        "the constant makes the result larger",
    )


def test_a_symbol_may_be_one() -> None:
    """N and M may be different: the result is no longer as large as x then."""
    assert_refuses(
        NeutralElement,
        """(float[N] x, float[M] z) => (float[K] y) <float[2] c = {0, 0}> {
            y = Add(x, c)
        }""",
        "the constant makes the result larger",
    )


@pytest.mark.parametrize(("number", "chosen"), [(1, "a"), (0, "b")])
def test_a_constant_condition_chooses(number: int, chosen: str) -> None:
    """One branch is left."""
    assert_rewrites(
        WhereConstant,
        f"""(float[N] a, float[N] b) => (float[N] y) <bool[1] c = {{{number}}}> {{
            w = Where(c, a, b)
            y = Exp(w)
        }}""",
        f"(float[N] a, float[N] b) => (float[N] y) {{y = Exp({chosen})}}",
    )


def test_a_chosen_branch_that_broadcasts() -> None:
    """The other branch gives the result its size."""
    assert_refuses(
        WhereConstant,
        "(float[1] a, float[2] b) => (float[2] y) <bool[1] c = {1}> {y = Where(c, a, b)}",
        "the result is larger than what is chosen",
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [("Add(x, n)", "Sub(x, z)"), ("Add(n, x)", "Sub(x, z)"), ("Sub(x, n)", "Add(x, z)")],
)
def test_a_negative_operand(before: str, after: str) -> None:
    """The sign belongs to the operator."""
    assert_rewrites(
        AddNeg,
        f"(float[N] x, float[N] z) => (float[N] y) {{n = Neg(z) y = {before}}}",
        f"(float[N] x, float[N] z) => (float[N] y) {{y = {after}}}",
    )


def test_a_negative_that_is_needed() -> None:
    """Nothing would be won."""
    assert_refuses(
        AddNeg,
        "(float[N] x, float[N] z) => (float[N] y, float[N] n) {n = Neg(z) y = Add(x, n)}",
        "others read what is inside",
    )


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
