"""Reshapes and their like, the sizes that they are given, and what is computed between them."""

from __future__ import annotations

import pytest

from dort_rewriter.graph.shapes import may_be_zero
from dort_rewriter.optimize.patterns.standard.views import (
    ReduceReshape,
    ReshapeMatMulReshape,
    ReshapeReshape,
    ReshapeTarget,
    ShapeBasedIdentity,
    ShapeOfInput,
    StaticSizes,
)
from tests.optimize.rewrites import apply, assert_refuses, assert_rewrites, model_of


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


def test_no_size_is_inferred_beside_one_that_may_be_zero() -> None:
    """Of the rows that a mask selects there may be none: any number would do."""
    assert_refuses(
        ReshapeReshape,
        """(float[u0,4,M] x, int64[1] n) => (float[u0,K] y) <int64[1] s = {-1}> {
            a = Reshape(x, s)
            rows = Shape<start = 0, end = 1>(x)
            t = Concat<axis = 0>(rows, n)
            y = Reshape<allowzero = 1>(a, t)
        }""",
        "the shape depends on the one between",
    )


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (0, True),
        (3, False),
        ("s0", False),
        ("batch size", False),
        ("u0 + 1", True),
        ("s0 - 1", False),
        ("s0 - 2", True),
        ("s0*(s1 - 1) + 1", False),
        ("-s0 + s1", True),
        ("((s0//2))", False),
        ("s0 - ((s0//2)) - 1", True),
        ("(s0 + 1)**2", False),
        ("Max(1, s0 - 3)", False),
        ("Min(s0, s1 - 2)", True),
        ("Mod(s0, 3)", True),
    ],
)
def test_sizes_that_may_be_zero(size: int | str, expected: bool) -> None:
    """Symbols of torch's are at least 2: other sizes make graphs of their own."""
    assert may_be_zero(size) is expected


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
