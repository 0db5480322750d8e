"""Bounds on numbers, one after the other."""

from __future__ import annotations

import numpy as np
import pytest

from dort_rewriter.optimize.patterns.standard.arithmetic import ClipClip
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


@pytest.mark.parametrize(("kind", "number"), [("Max", "4"), ("Min", "1")])
def test_two_extrema_are_one(kind: str, number: str) -> None:
    """Of the same kind, with numbers."""
    assert_rewrites(
        ClipClip,
        f"""(float[6] x) => (float[6] y) <float one = {{1}}, float[1] four = {{4}}> {{
            a = {kind}(x, one) y = {kind}(a, four) }}""",
        f"(float[6] x) => (float[6] y) <float n = {{{number}}}> {{y = {kind}(x, n)}}",
        inputs=NUMBERS,
    )


@pytest.mark.parametrize(
    ("inputs", "outputs", "body", "reason"),
    [
        ("", ", float[6] a", "a = Max(x, one) y = Max(a, four)", "the inner result is needed"),
        (", float z", "", "a = Max(x, z) y = Max(a, four)", None),
        ("", "", "a = Max(x, one) y = Min(a, four)", None),
        ("", "", "a = Max(x, one) y = Relu(a)", None),
    ],
)
def test_extrema_that_stay(inputs: str, outputs: str, body: str, reason: str | None) -> None:
    """Needed, computed, or of another kind."""
    assert_refuses(
        ClipClip,
        f"""(float[6] x{inputs}) => (float[6] y{outputs})
        <float one = {{1}}, float four = {{4}}> {{{body}}}""",
        reason,
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
