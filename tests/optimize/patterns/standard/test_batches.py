"""Products of stacks of matrices, whose axes are merged before and split after."""

from __future__ import annotations

from dort_rewriter.optimize.patterns.standard.views import ReshapeMatMulReshape
from tests.optimize.rewrites import assert_refuses, assert_rewrites


def test_stacks_need_not_be_merged() -> None:
    """MatMul takes them as they are."""
    assert_rewrites(
        ReshapeMatMulReshape,
        """(float[2,6,3,4] a, float[2,6,4,5] b) => (float[2,6,3,5] y)
        <int64[3] s = {-1, 3, 4}, int64[3] t = {-1, 4, 5}, int64[4] u = {2, -1, 3, 5}> {
            c = Reshape(a, s)
            d = Reshape(b, t)
            m = MatMul(c, d)
            y = Reshape(m, u)
        }""",
        "(float[2,6,3,4] a, float[2,6,4,5] b) => (float[2,6,3,5] y) {y = MatMul(a, b)}",
    )


def test_sizes_of_stacks_are_symbols() -> None:
    """The names of the sizes say that the axes come back."""
    assert_rewrites(
        ReshapeMatMulReshape,
        """(float[N,2,M,4] a, float[N,2,4,5] b) => (float[N,2,M,5] y)
        <int64[3] t = {-1, 4, 5}, int64[1] four = {4}, int64[1] minus = {-1}, int64[1] two = {2},
         int64[1] five = {5}> {
            i = Shape<start=2, end=3>(a)
            s = Concat<axis=0>(minus, i, four)
            c = Reshape(a, s)
            d = Reshape(b, t)
            m = MatMul(c, d)
            n = Shape<start=0, end=1>(a)
            u = Concat<axis=0>(n, two, i, five)
            y = Reshape(m, u)
        }""",
        "(float[N,2,M,4] a, float[N,2,4,5] b) => (float[N,2,M,5] y) {y = MatMul(a, b)}",
    )


def test_an_operand_has_more_axes() -> None:
    """Heads shared by groups of queries: what is merged is a repetition over five axes."""
    text = """(float[N,2,M,4] a, float[N,1,2,4,S] b) => (float[N,2,M,S] y)
        <int64[1] four = {4}, int64[1] minus = {-1}, int64[1] two = {2}> {
            i = Shape<start=2, end=3>(a)
            s = Concat<axis=0>(minus, i, four)
            c = Reshape(a, s)
            j = Shape<start=4, end=5>(b)
            t = Concat<axis=0>(minus, four, j)
            d = Reshape(b, t)
            m = MatMul(c, d)
            n = Shape<start=0, end=1>(a)
            u = Concat<axis=0>(n, two, i, j)
            y = Reshape(m, u)
        }"""
    assert_rewrites(
        ReshapeMatMulReshape,
        text,
        """(float[N,2,M,4] a, float[N,1,2,4,S] b) => (float[N,2,M,S] y)
        <int64[4] t = {0, 2, 4, -1}> {
            d = Reshape(b, t)
            y = MatMul(a, d)
        }""",
    )
    other = text.replace("float[N,1,2,4,S] b", "float[N,1,4,2,S] b")
    assert_rewrites(
        ReshapeMatMulReshape,
        other,
        """(float[N,2,M,4] a, float[N,1,4,2,S] b) => (float[N,2,M,S] y)
        <int64[4] t = {0, 2, 4, -1}> {
            d = Reshape(b, t)
            y = MatMul(a, d)
        }""",
    )


def test_an_operand_of_unknown_axes_stays() -> None:
    """Neither of two sizes that move is told by what is merged."""
    assert_refuses(
        ReshapeMatMulReshape,
        """(float[N,2,M,4] a, float[S,N,2,4] b) => (float[N,2,M,S] y)
        <int64[1] four = {4}, int64[1] minus = {-1}, int64[1] two = {2}> {
            i = Shape<start=2, end=3>(a)
            s = Concat<axis=0>(minus, i, four)
            c = Reshape(a, s)
            j = Shape<start=0, end=1>(b)
            t = Concat<axis=0>(minus, four, j)
            d = Reshape(b, t)
            m = MatMul(c, d)
            n = Shape<start=0, end=1>(a)
            u = Concat<axis=0>(n, two, i, j)
            y = Reshape(m, u)
        }""",
        "an operand cannot be split",
    )


def test_one_operand_is_split() -> None:
    """It was saved in the merged shape by the forward graph."""
    assert_rewrites(
        ReshapeMatMulReshape,
        """(float[6,3,4] a, float[2,3,4,5] b) => (float[2,3,3,5] y)
        <int64[3] t = {6, 4, 5}, int64[4] u = {2, 3, 3, 5}> {
            d = Reshape(b, t)
            m = MatMul(a, d)
            y = Reshape(m, u)
        }""",
        """(float[6,3,4] a, float[2,3,4,5] b) => (float[2,3,3,5] y) <int64[4] s = {2, 3, 3, 4}> {
            c = Reshape(a, s)
            y = MatMul(c, b)
        }""",
    )


def test_both_operands_are_merged() -> None:
    """Nothing would be won."""
    assert_refuses(
        ReshapeMatMulReshape,
        """(float[6,3,4] a, float[6,4,5] b) => (float[2,3,3,5] y) <int64[4] u = {2, 3, 3, 5}> {
            m = MatMul(a, b)
            y = Reshape(m, u)
        }""",
        "both operands were merged elsewhere",
    )


def test_a_product_that_is_needed() -> None:
    """It is returned in its first shape."""
    assert_refuses(
        ReshapeMatMulReshape,
        """(float[2,3,3,4] a, float[2,3,4,5] b) => (float[2,3,3,5] y, float[6,3,5] m)
        <int64[3] s = {6, 3, 4}, int64[3] t = {6, 4, 5}, int64[4] u = {2, 3, 3, 5}> {
            c = Reshape(a, s)
            d = Reshape(b, t)
            m = MatMul(c, d)
            y = Reshape(m, u)
        }""",
        "the product is needed in its first shape",
    )


def test_an_operand_that_is_shared_by_all() -> None:
    """A matrix has no stack to split."""
    assert_refuses(
        ReshapeMatMulReshape,
        """(float[2,3,3,4] a, float[4,5] b) => (float[2,3,3,5] y)
        <int64[3] s = {6, 3, 4}, int64[4] u = {2, 3, 3, 5}> {
            c = Reshape(a, s)
            m = MatMul(c, b)
            y = Reshape(m, u)
        }""",
        "an operand cannot be split",
    )
