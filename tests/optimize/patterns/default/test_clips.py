"""Bounds on numbers, one after the other."""

from __future__ import annotations

import numpy as np
import pytest

from dort_rewriter.optimize.patterns.default.clips import ClipClip
from tests.optimize.rewrites import assert_refuses, assert_rewrites

NUMBERS = {"x": np.array([-3, -1, 0, 0.5, 2, 9], dtype=np.float32)}


@pytest.mark.parametrize(
    ("first", "second", "both"),
    [
        ("low, high", "zero, six", "zero, high"),
        ("low", ", six", "low, six"),
        (", six", "zero, high", "zero, high"),
    ],
)
def test_two_ranges_are_one(first: str, second: str, both: str) -> None:
    """The larger lower bound and the smaller upper one."""
    constants = "<float low = {-2}, float zero = {0}, float high = {4}, float six = {6}>"
    assert_rewrites(
        ClipClip,
        f"""(float[6] x) => (float[6] y) {constants} {{
            a = Clip(x, {first})
            y = Clip(a, {second})
        }}""",
        f"(float[6] x) => (float[6] y) {constants} {{y = Clip(x, {both})}}",
        inputs=NUMBERS,
    )


def test_two_relus_are_one() -> None:
    """Nothing below zero is left for the second."""
    assert_rewrites(
        ClipClip,
        "(float[6] x) => (float[6] y) {a = Relu(x) y = Relu(a)}",
        "(float[6] x) => (float[6] y) {y = Relu(x)}",
        inputs=NUMBERS,
    )


@pytest.mark.parametrize(
    ("second", "outputs", "reason"),
    [
        ("six, nine", "", "the ranges do not meet"),
        ("zero, z", "", "a bound is computed"),
        ("zero, six", ", float[6] a", "the inner result is needed"),
    ],
)
def test_ranges_that_stay(second: str, outputs: str, reason: str) -> None:
    """Apart, unknown, or needed one by one."""
    assert_refuses(
        ClipClip,
        f"""(float[6] x, float z) => (float[6] y{outputs})
        <float zero = {{0}}, float high = {{4}}, float six = {{6}}, float nine = {{9}}> {{
            a = Clip(x, zero, high)
            y = Clip(a, {second})
        }}""",
        reason,
    )
