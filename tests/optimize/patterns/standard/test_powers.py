"""Powers with a small constant exponent."""

from __future__ import annotations

import numpy as np
import pytest

from dort_rewriter.optimize.patterns.standard.powers import PowToMul
from tests.optimize.rewrites import assert_refuses, assert_rewrites

POSITIVE = {"x": np.array([0.25, 1.5, 3.0], dtype=np.float32)}


@pytest.mark.parametrize(
    ("exponent", "nodes"),
    [
        ("2.0", "y = Mul(x, x)"),
        ("3.0", "a = Mul(x, x) y = Mul(a, x)"),
        ("4.0", "a = Mul(x, x) y = Mul(a, a)"),
        ("1.5", "a = Sqrt(x) y = Mul(x, a)"),
        ("0.5", "y = Sqrt(x)"),
        ("-1.0", "y = Reciprocal(x)"),
        ("-0.5", "a = Sqrt(x) y = Reciprocal(a)"),
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
