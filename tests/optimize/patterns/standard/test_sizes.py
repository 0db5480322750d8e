"""Arithmetic on sizes."""

from __future__ import annotations

from dort_rewriter.optimize.patterns.standard.views import (
    ReshapeTarget,
    ShapeOfInput,
    StaticSizes,
)
from tests.optimize.rewrites import apply, assert_refuses, assert_rewrites, model_of


def test_sizes_that_are_known() -> None:
    """However they are computed."""
    assert_rewrites(
        StaticSizes,
        """(float[N,4,6] x, int64[2] z) => (int64[2] y) <int64[1] i = {1}, int64[1] two = {2}> {
            s = Shape(x)
            a = Gather(s, i)
            b = Shape<start=2, end=3>(x)
            c = Mul(a, two)
            d = Concat<axis=0>(c, b)
            y = Add(d, z)
        }""",
        "(float[N,4,6] x, int64[2] z) => (int64[2] y) <int64[2] c = {8, 6}> {y = Add(c, z)}",
        count=4,
    )


def test_sizes_that_are_not_known() -> None:
    """N is a number only when the model runs."""
    assert_refuses(StaticSizes, "(float[N,4] x) => (int64[2] y) {y = Shape(x)}")


def test_a_target_of_symbols() -> None:
    """What stands where it stood is 0, one other size -1."""
    assert_rewrites(
        ReshapeTarget,
        """(float[N,M] x) => (float[N,1,M] y) <int64[1] one = {1}> {
            n = Shape<start=0, end=1>(x)
            m = Shape<start=1, end=2>(x)
            t = Concat<axis=0>(n, one, m)
            y = Reshape(x, t)
        }""",
        "(float[N,M] x) => (float[N,1,M] y) <int64[3] t = {0, 1, -1}> {y = Reshape(x, t)}",
    )


def test_a_target_with_two_unknown_sizes() -> None:
    """Nothing but the numbers says them."""
    assert_refuses(
        ReshapeTarget,
        """(float[K] x, float[N,M] like) => (float[N,M] y) {
            t = Shape(like)
            y = Reshape(x, t)
        }""",
        "two sizes are not told by the input",
    )


def test_an_input_tells_the_shape() -> None:
    """What is computed is not needed for it."""
    assert_rewrites(
        ShapeOfInput,
        """(float[4,N,M] x) => (int64[1] y) {
            a = Exp(x)
            b = ReduceSum<keepdims=0>(a)
            c = Shape<start=2, end=3>(a)
            y = Neg(c)
        }""",
        """(float[4,N,M] x) => (int64[1] y) {
            c = Shape<start=2, end=3>(x)
            y = Neg(c)
        }""",
    )


def test_no_input_tells_the_shape() -> None:
    """The number of what is not zero is new."""
    assert_refuses(
        ShapeOfInput,
        """(float[N] x) => (int64[2] y) {
            a = NonZero(x)
            y = Shape(a)
        }""",
    )


def test_a_long_chain_of_sums_of_sizes() -> None:
    """What depends on a thousand nodes is known without recursion."""
    steps = " ".join(f"s{i + 1} = Add(s{i}, one)" for i in range(1100))
    model = model_of(
        f"""(float[N,1] x) => (float[M,K] y) <int64[1] one = {{1}}> {{
        s0 = Shape<start=1>(x) {steps} t = Concat<axis=0>(one, s1100) y = Expand(x, t) }}"""
    )
    apply(StaticSizes, model)
    assert [n.op_type for n in model.graph] == ["Expand"]
