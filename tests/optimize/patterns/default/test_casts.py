"""Chains of casts."""

from __future__ import annotations

from dort_rewriter.optimize.patterns.default.casts import CastCast
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
