"""Reshapes, Squeezes and Unsqueezes that follow each other or do nothing."""

from __future__ import annotations

import pytest

from dort_rewriter.optimize.patterns.standard.views import ReshapeReshape, ShapeBasedIdentity
from tests.optimize.rewrites import assert_refuses, assert_rewrites


def test_two_reshapes_are_one() -> None:
    """Sizes that are symbols keep their place."""
    assert_rewrites(
        ReshapeReshape,
        """(float[N,4,6] x) => (float[N,2,12] y)
        <int64[2] s = {0, 24}, int64[3] t = {0, 2, 12}> {
            a = Reshape(x, s)
            y = Reshape(a, t)
        }""",
        "(float[N,4,6] x) => (float[N,2,12] y) <int64[3] t = {0, 2, 12}> {y = Reshape(x, t)}",
    )


def test_a_shape_that_comes_back() -> None:
    """Nothing is left, whatever the operators are called."""
    assert_rewrites(
        ReshapeReshape,
        """(float[N,4] x) => (float[N,4] y) <int64[1] s = {1}, int64[2] t = {0, -1}> {
            n = Neg(x)
            a = Unsqueeze(n, s)
            b = Reshape(a, t)
            y = Exp(b)
        }""",
        "(float[N,4] x) => (float[N,4] y) {n = Neg(x) y = Exp(n)}",
    )


def test_two_unsqueezes_are_one() -> None:
    """Its axes are those of the result."""
    assert_rewrites(
        ReshapeReshape,
        """(float[N,M] x) => (float[N,1,M,1] y) <int64[1] s = {-1}, int64[1] t = {1}> {
            a = Unsqueeze(x, s)
            y = Unsqueeze(a, t)
        }""",
        "(float[N,M] x) => (float[N,1,M,1] y) <int64[2] s = {1, 3}> {y = Unsqueeze(x, s)}",
    )


def test_a_computed_shape_is_kept() -> None:
    """It has no 0 that stands for a size of the input."""
    assert_rewrites(
        ReshapeReshape,
        """(float[N,M] x, float[M,N] like) => (float[M,N] y) <int64[1] s = {-1}> {
            a = Reshape(x, s)
            t = Shape(like)
            y = Reshape(a, t)
        }""",
        """(float[N,M] x, float[M,N] like) => (float[M,N] y) {
            t = Shape(like)
            y = Reshape(x, t)
        }""",
    )


def test_an_unknown_shape_is_left_alone() -> None:
    """A 0 in it would stand for a size of the shape between."""
    assert_refuses(
        ReshapeReshape,
        """(float[N,M] x, int64[2] t) => (float[K,L] y) <int64[1] s = {-1}> {
            a = Reshape(x, s)
            y = Reshape(a, t)
        }""",
        "the shape depends on the one between",
    )


@pytest.mark.parametrize(
    "node",
    ["Reshape(n, shape)", "Expand(n, one)", "Slice(n, zero, four, one)"],
)
def test_a_shape_that_does_not_change(node: str) -> None:
    """Known by its symbols."""
    assert_rewrites(
        ShapeBasedIdentity,
        f"""(float[N,4] x) => (float[N,4] y)
        <int64[2] shape = {{-1, 4}}, int64[1] zero = {{0}}, int64[1] one = {{1}},
         int64[1] four = {{4}}> {{
            n = Neg(x)
            a = {node}
            y = Exp(a)
        }}""",
        "(float[N,4] x) => (float[N,4] y) {n = Neg(x) y = Exp(n)}",
    )


def test_a_reversing_slice_is_none() -> None:
    """The shape stays, the elements do not."""
    assert_refuses(
        ShapeBasedIdentity,
        """(float[4] x) => (float[4] y)
        <int64[1] s = {3}, int64[1] e = {-9}, int64[1] a = {0}, int64[1] t = {-1}> {
            y = Slice(x, s, e, a, t)
        }""",
        "a step may be negative",
    )


def test_a_pad_that_moves_is_none() -> None:
    """One more in front, one less at the end."""
    assert_refuses(
        ShapeBasedIdentity,
        "(float[4] x) => (float[4] y) <int64[2] p = {1, -1}> {y = Pad(x, p)}",
    )


def test_a_pad_by_nothing() -> None:
    """Also when the number is a difference of equal sizes."""
    assert_rewrites(
        ShapeBasedIdentity,
        """(float[N] x, float[N] z) => (float[N] y) <int64[1] o = {0}> {
            s = Shape(x)
            t = Shape(z)
            d = Sub(s, t)
            p = Concat<axis=0>(o, d)
            n = Neg(x)
            a = Pad(n, p)
            r = Reshape(a, s)
            y = Neg(r)
        }""",
        "(float[N] x, float[N] z) => (float[N] y) {n = Neg(x) y = Neg(n)}",
        count=2,
    )


def test_a_slice_up_to_the_end() -> None:
    """The end is the size of the axis, known by its symbol."""
    assert_rewrites(
        ShapeBasedIdentity,
        """(float[N,M] x, float[N,K] like) => (float[N,M] y)
        <int64[1] zero = {0}> {
            e = Shape<start=0, end=1>(like)
            n = Neg(x)
            a = Slice(n, zero, e, zero)
            y = Exp(a)
        }""",
        "(float[N,M] x, float[N,K] like) => (float[N,M] y) {n = Neg(x) y = Exp(n)}",
    )
