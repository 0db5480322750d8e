"""Chains of casts."""

from __future__ import annotations

from dort_rewriter.optimize.patterns.standard.arithmetic import CastCast, CastOpCast
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
