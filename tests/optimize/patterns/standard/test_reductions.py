"""Reductions, and whether they keep the axes they reduce."""

from __future__ import annotations

import pytest

from dort_rewriter.optimize.patterns.standard.views import ReduceReshape
from tests.optimize.rewrites import assert_refuses, assert_rewrites


@pytest.mark.parametrize("view", ["Squeeze(a, axis)", "Reshape(a, shape)"])
def test_an_axis_is_not_kept(view: str) -> None:
    """It was taken out right away."""
    assert_rewrites(
        ReduceReshape,
        f"""(float[N,4,5] x) => (float[N,5] y)
        <int64[1] axis = {{1}}, int64[2] shape = {{0, 5}}> {{
            a = ReduceSum(x, axis)
            y = {view}
        }}""",
        """(float[N,4,5] x) => (float[N,5] y) <int64[1] axis = {1}> {
            y = ReduceSum<keepdims=0>(x, axis)
        }""",
    )


def test_an_axis_is_kept() -> None:
    """It was put back right away."""
    assert_rewrites(
        ReduceReshape,
        """(float[N,4] x) => (float[N,1] y) <int64[1] axis = {1}> {
            a = ReduceMax<keepdims=0>(x, axis)
            y = Unsqueeze(a, axis)
        }""",
        """(float[N,4] x) => (float[N,1] y) <int64[1] axis = {1}> {
            y = ReduceMax<keepdims=1>(x, axis)
        }""",
    )


def test_another_axis_is_left_alone() -> None:
    """The sum is over the columns."""
    assert_refuses(
        ReduceReshape,
        """(float[N,4] x) => (float[1,N] y) <int64[1] axis = {1}, int64[1] zero = {0}> {
            a = ReduceSum<keepdims=0>(x, axis)
            y = Unsqueeze(a, zero)
        }""",
    )


def test_a_reduction_that_is_needed() -> None:
    """There would be two."""
    assert_refuses(
        ReduceReshape,
        """(float[N,4] x) => (float[N] y, float[N,1] a) <int64[1] axis = {1}> {
            a = ReduceSum(x, axis)
            y = Squeeze(a, axis)
        }""",
        "the reduction is needed as it is",
    )
