"""Expand before operators that broadcast by themselves."""

from __future__ import annotations

from dort_rewriter.optimize.patterns.standard.moves import (
    ExpandBroadcast,
    ExpandExpand,
    ExpandSwap,
)
from tests.optimize.rewrites import assert_refuses, assert_rewrites


def test_the_other_operand_is_large_enough() -> None:
    """Broadcasting does what Expand did."""
    assert_rewrites(
        ExpandBroadcast,
        """(float[N,1] x, float[N,4] z) => (float[N,4] y) <int64[2] s = {1, 4}> {
            a = Expand(x, s)
            y = Mul(z, a)
        }""",
        "(float[N,1] x, float[N,4] z) => (float[N,4] y) {y = Mul(z, x)}",
    )


def test_one_of_two_expands_is_needed() -> None:
    """The other one goes."""
    assert_rewrites(
        ExpandBroadcast,
        """(float[N,1] x, float[N,1] z) => (float[N,4] y) <int64[2] s = {1, 4}> {
            a = Expand(x, s)
            b = Expand(z, s)
            y = Mul(a, b)
        }""",
        """(float[N,1] x, float[N,1] z) => (float[N,4] y) <int64[2] s = {1, 4}> {
            b = Expand(z, s)
            y = Mul(x, b)
        }""",
    )


def test_both_expands_go() -> None:
    """Each makes another axis large, and the other operand both."""
    assert_rewrites(
        ExpandBroadcast,
        """(float[N,1] x, float[1,4] z) => (float[N,4] y) <int64[2] s = {1, 4}> {
            t = Shape(x)
            a = Expand(x, s)
            b = Expand(z, t)
            y = Mul(a, b)
        }""",
        "(float[N,1] x, float[1,4] z) => (float[N,4] y) {y = Mul(x, z)}",
    )


def test_an_expand_that_makes_the_result_larger() -> None:
    """It is needed."""
    assert_refuses(
        ExpandBroadcast,
        """(float[N,1] x, float[N,1] z) => (float[N,4] y) <int64[2] s = {1, 4}> {
            a = Expand(x, s)
            y = Mul(a, z)
        }""",
        "the result would be smaller",
    )


def test_a_symbol_may_be_one() -> None:
    """Nobody says that M is as large as N."""
    assert_refuses(
        ExpandBroadcast,
        """(float[1] x, float[M] z, float[N] like) => (float[K] y) {
            s = Shape(like)
            a = Expand(x, s)
            y = Mul(a, z)
        }""",
        "the result would be smaller",
    )


def test_functions_are_computed_before_they_are_repeated() -> None:
    """With one input, or with another one that is small too."""
    assert_rewrites(
        ExpandSwap,
        """(float[N,1] x) => (float[N,4] y) <int64[2] s = {1, 4}, float c = {2}> {
            a = Expand(x, s)
            b = Exp(a)
            y = Mul(b, c)
        }""",
        """(float[N,1] x) => (float[N,4] y) <int64[2] s = {1, 4}, float c = {2}> {
            b = Exp(x)
            m = Mul(b, c)
            y = Expand(m, s)
        }""",
        count=2,
    )


def test_an_expanded_value_that_is_needed() -> None:
    """There would be two Expands."""
    assert_refuses(
        ExpandSwap,
        """(float[N,1] x) => (float[N,4] y, float[N,4] a) <int64[2] s = {1, 4}> {
            a = Expand(x, s)
            y = Exp(a)
        }""",
        "the expanded value is needed",
    )


def test_a_larger_operand_is_no_number() -> None:
    """The product of what is small would be larger than x."""
    assert_refuses(
        ExpandSwap,
        """(float[N,1] x, float[4] z) => (float[N,4] y) <int64[2] s = {1, 4}> {
            a = Expand(x, s)
            y = Mul(a, z)
        }""",
        "another input makes the result larger",
    )


def test_two_expands_are_one() -> None:
    """The second target says it all."""
    assert_rewrites(
        ExpandExpand,
        """(float[N,1] x) => (float[2,N,4] y) <int64[2] s = {1, 4}, int64[3] t = {2, 1, 4}> {
            a = Expand(x, s)
            y = Expand(a, t)
        }""",
        "(float[N,1] x) => (float[2,N,4] y) <int64[3] t = {2, 1, 4}> {y = Expand(x, t)}",
    )


def test_the_first_target_is_needed() -> None:
    """The second says 1, which keeps the 4 of the first."""
    assert_refuses(
        ExpandExpand,
        """(float[N,1] x) => (float[2,N,4] y) <int64[2] s = {1, 4}, int64[3] t = {2, 1, 1}> {
            a = Expand(x, s)
            y = Expand(a, t)
        }""",
        "the first shape is needed",
    )
