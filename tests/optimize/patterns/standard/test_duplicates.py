"""Nodes that compute the same thing twice."""

from __future__ import annotations

from dort_rewriter.optimize.patterns.standard.passes import CommonSubexpressions
from tests.optimize.rewrites import assert_refuses, assert_rewrites


def test_equal_nodes_become_one() -> None:
    """Also those that are equal only once their inputs are."""
    assert_rewrites(
        CommonSubexpressions,
        """(float[N] x) => (float[N] y) {
            a = Neg(x)
            b = Neg(x)
            c = Exp(a)
            d = Exp(b)
            y = Add(c, d)
        }""",
        """(float[N] x) => (float[N] y) {
            a = Neg(x)
            c = Exp(a)
            y = Add(c, c)
        }""",
        count=2,
    )


def test_attributes_make_a_difference() -> None:
    """The axes are not the same."""
    assert_refuses(
        CommonSubexpressions,
        """(float[2,2] x) => (float[2,2] y) {
            a = Softmax<axis=0>(x)
            b = Softmax<axis=1>(x)
            y = Add(a, b)
        }""",
    )


def test_random_nodes_are_never_merged() -> None:
    """Two draws are two draws."""
    assert_refuses(
        CommonSubexpressions,
        """(float[2,2] x) => (float[2,2] y) {
            a = RandomNormalLike(x)
            b = RandomNormalLike(x)
            y = Add(a, b)
        }""",
    )


def test_two_outputs_keep_their_names() -> None:
    """Each result of a model is a value of its own."""
    assert_refuses(
        CommonSubexpressions,
        "(float[N] x) => (float[N] y, float[N] z) {y = Neg(x) z = Neg(x)}",
    )
