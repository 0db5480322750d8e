"""Slices of one tensor that together take all of it."""

from __future__ import annotations

import pytest

from dort_rewriter.optimize.patterns.standard.passes import SlicesSplit
from tests.optimize.rewrites import assert_refuses, assert_rewrites

HALVES = """(float[N,8] x) => (float[N,8] y)
<int64[1] zero = {0}, int64[1] start = {4}, int64[1] first = {4}, int64[1] end = {8},
 int64[1] axis = {1}> {
    b = Slice(x, start, end, axis)
    n = Neg(b)
    a = Slice(x, zero, first, axis)
    y = Concat<axis=1>(n, a)
}"""


def test_two_halves_are_split() -> None:
    """As a rotary embedding has them, in whatever order."""
    assert_rewrites(
        SlicesSplit,
        HALVES,
        """(float[N,8] x) => (float[N,8] y) <int64[2] sizes = {4, 4}> {
            a, b = Split<axis=1>(x, sizes)
            n = Neg(b)
            y = Concat<axis=1>(n, a)
        }""",
    )


@pytest.mark.parametrize(
    ("start", "first"), [(3, 4), (5, 4), (4, 5)], ids=["overlap", "gap", "overlap at the other"]
)
def test_parts_that_are_no_partition(start: int, first: int) -> None:
    """An element would be in two parts, or in none."""
    before = HALVES.replace("start = {4}", f"start = {{{start}}}")
    before = before.replace("first = {4}", f"first = {{{first}}}")
    assert_refuses(SlicesSplit, before.replace("(float[N,8] y)", "(float[N,K] y)"))


def test_a_part_that_is_returned() -> None:
    """An output keeps its node."""
    assert_refuses(
        SlicesSplit,
        """(float[N,8] x) => (float[N,4] y, float[N,4] b)
        <int64[1] zero = {0}, int64[1] four = {4}, int64[1] end = {8}, int64[1] axis = {1}> {
            a = Slice(x, zero, four, axis)
            b = Slice(x, four, end, axis)
            y = Neg(a)
        }""",
    )


def test_a_part_is_split_again() -> None:
    """The second Split reads what the first one gives."""
    assert_rewrites(
        SlicesSplit,
        """(float[2,8] x) => (float[1,8] y)
        <int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] three = {3},
         int64[1] eight = {8}> {
            a = Slice(x, zero, one, zero)
            b = Slice(x, one, two, zero)
            c = Slice(a, zero, three, one)
            d = Slice(a, three, eight, one)
            e = Concat<axis=1>(d, c)
            y = Add(e, b)
        }""",
        """(float[2,8] x) => (float[1,8] y)
        <int64[2] ones = {1, 1}, int64[2] parts = {3, 5}> {
            a, b = Split<axis=0>(x, ones)
            c, d = Split<axis=1>(a, parts)
            e = Concat<axis=1>(d, c)
            y = Add(e, b)
        }""",
        count=2,
    )
