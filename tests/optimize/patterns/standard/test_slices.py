"""Pieces of tensors that are cut out and put together again."""

from __future__ import annotations

import pytest

from dort_rewriter.optimize.patterns.standard.slices import (
    PadPadAdd,
)
from tests.optimize.rewrites import assert_refuses, assert_rewrites


def _bounds(**numbers: int) -> str:
    return ", ".join(f"int64[1] {k} = {{{v}}}" for k, v in numbers.items())


@pytest.mark.parametrize("order", ["a, b", "b, a"])
def test_two_gradients_fill_each_others_gaps(order: str) -> None:
    """The gradient of a tensor that was cut in two."""
    assert_rewrites(
        PadPadAdd,
        f"""(float[N,4] x, float[N,6] z) => (float[N,10] y)
        <int64[2] f = {{6, 0}}, int64[2] s = {{0, 4}}, int64[1] axis = {{1}},
         float zero = {{0}}> {{
            a = Pad(x, f, , axis)
            b = Pad(z, s, zero, axis)
            y = Add({order})
        }}""",
        "(float[N,4] x, float[N,6] z) => (float[N,10] y) {y = Concat<axis=1>(z, x)}",
    )


def test_gradients_that_overlap() -> None:
    """One element is in both."""
    assert_refuses(
        PadPadAdd,
        """(float[5] x, float[6] z) => (float[10] y) <int64[2] f = {5, 0}, int64[2] s = {0, 4}> {
            a = Pad(x, f)
            b = Pad(z, s)
            y = Add(a, b)
        }""",
        "they overlap or leave a gap",
    )


def test_a_padded_part_that_is_needed() -> None:
    """Nothing would be won."""
    assert_refuses(
        PadPadAdd,
        """(float[4] x, float[6] z) => (float[10] y, float[10] a)
        <int64[2] f = {6, 0}, int64[2] s = {0, 4}> {
            a = Pad(x, f)
            b = Pad(z, s)
            y = Add(a, b)
        }""",
        "a padded part is needed",
    )


def test_padding_with_ones_is_none() -> None:
    """The sum is not that of zeros."""
    assert_refuses(
        PadPadAdd,
        """(float[4] x, float[6] z) => (float[10] y)
        <int64[2] f = {6, 0}, int64[2] s = {0, 4}, float one = {1}> {
            a = Pad(x, f, one)
            b = Pad(z, s)
            y = Add(a, b)
        }""",
    )
