"""Expand and Transpose: joined, left out, and moved past elementwise operators."""

from __future__ import annotations

import pytest

from dort_rewriter.optimize.patterns.standard.moves import (
    ExpandBroadcast,
    ExpandSwap,
    PadPadAdd,
    TransposeElementwise,
    TransposeEqualReshape,
    TransposeTranspose,
)
from tests.optimize.rewrites import assert_refuses, assert_rewrites


def test_the_other_operand_is_large_enough() -> None:
    """Broadcasting does what Expand did."""
    assert_rewrites(
        ExpandBroadcast,
        """(float[N,1] x, float[N,4] z) => (float[N,4] y) <int64[2] s = {1, 4}> {
            a = Expand(x, s)
            y = Mul(z, a)
        }""",
        "(float[N,1] x, float[N,4] z) => (float[N,4] y) {y = Mul(z, x)}",
    )


def test_one_of_two_expands_is_needed() -> None:
    """The other one goes."""
    assert_rewrites(
        ExpandBroadcast,
        """(float[N,1] x, float[N,1] z) => (float[N,4] y) <int64[2] s = {1, 4}> {
            a = Expand(x, s)
            b = Expand(z, s)
            y = Mul(a, b)
        }""",
        """(float[N,1] x, float[N,1] z) => (float[N,4] y) <int64[2] s = {1, 4}> {
            b = Expand(z, s)
            y = Mul(x, b)
        }""",
    )


def test_both_expands_go() -> None:
    """Each makes another axis large, and the other operand both."""
    assert_rewrites(
        ExpandBroadcast,
        """(float[N,1] x, float[1,4] z) => (float[N,4] y) <int64[2] s = {1, 4}> {
            t = Shape(x)
            a = Expand(x, s)
            b = Expand(z, t)
            y = Mul(a, b)
        }""",
        "(float[N,1] x, float[1,4] z) => (float[N,4] y) {y = Mul(x, z)}",
    )


def test_an_expand_that_makes_the_result_larger() -> None:
    """It is needed."""
    assert_refuses(
        ExpandBroadcast,
        """(float[N,1] x, float[N,1] z) => (float[N,4] y) <int64[2] s = {1, 4}> {
            a = Expand(x, s)
            y = Mul(a, z)
        }""",
        "the result would be smaller",
    )


def test_a_symbol_may_be_one() -> None:
    """Nobody says that M is as large as N."""
    assert_refuses(
        ExpandBroadcast,
        """(float[1] x, float[M] z, float[N] like) => (float[K] y) {
            s = Shape(like)
            a = Expand(x, s)
            y = Mul(a, z)
        }""",
        "the result would be smaller",
    )


def test_functions_are_computed_before_they_are_repeated() -> None:
    """With one input, or with another one that is small too."""
    assert_rewrites(
        ExpandSwap,
        """(float[N,1] x) => (float[N,4] y) <int64[2] s = {1, 4}, float c = {2}> {
            a = Expand(x, s)
            b = Exp(a)
            y = Mul(b, c)
        }""",
        """(float[N,1] x) => (float[N,4] y) <int64[2] s = {1, 4}, float c = {2}> {
            b = Exp(x)
            m = Mul(b, c)
            y = Expand(m, s)
        }""",
        count=2,
    )


def test_an_expanded_value_that_is_needed() -> None:
    """There would be two Expands."""
    assert_refuses(
        ExpandSwap,
        """(float[N,1] x) => (float[N,4] y, float[N,4] a) <int64[2] s = {1, 4}> {
            a = Expand(x, s)
            y = Exp(a)
        }""",
        "the expanded value is needed",
    )


def test_a_larger_operand_is_no_number() -> None:
    """The product of what is small would be larger than x."""
    assert_refuses(
        ExpandSwap,
        """(float[N,1] x, float[4] z) => (float[N,4] y) <int64[2] s = {1, 4}> {
            a = Expand(x, s)
            y = Mul(a, z)
        }""",
        "another input makes the result larger",
    )


def test_two_transposes_become_one() -> None:
    """The permutations are composed."""
    assert_rewrites(
        TransposeTranspose,
        """(float[2,3,4] x) => (float[4,2,3] y) {
            a = Transpose<perm=[1, 2, 0]>(x)
            y = Transpose<perm=[1, 2, 0]>(a)
        }""",
        "(float[2,3,4] x) => (float[4,2,3] y) {y = Transpose<perm=[2, 0, 1]>(x)}",
    )


def test_two_transposes_that_undo_each_other_vanish() -> None:
    """The reader gets the input."""
    assert_rewrites(
        TransposeTranspose,
        """(float[2,N] x) => (float[2,N] y) {
            a = Transpose(x)
            b = Transpose<perm=[1, 0]>(a)
            y = Neg(b)
        }""",
        "(float[2,N] x) => (float[2,N] y) {y = Neg(x)}",
    )


def test_an_intermediate_result_that_is_returned_stays() -> None:
    """The second transpose goes, the first is an output."""
    assert_rewrites(
        TransposeTranspose,
        """(float[2,N] x) => (float[N,2] a, float[2,N] y) {
            a = Transpose(x)
            b = Transpose(a)
            y = Neg(b)
        }""",
        """(float[2,N] x) => (float[N,2] a, float[2,N] y) {
            a = Transpose(x)
            y = Neg(x)
        }""",
    )


def test_an_output_that_would_be_an_input_keeps_its_node() -> None:
    """ONNX has no way to return an input under another name."""
    assert_refuses(
        TransposeTranspose,
        """(float[2,N] x) => (float[2,N] y) {
            a = Transpose(x)
            y = Transpose(a)
        }""",
        "an output of the model has to have its own node",
    )


def test_the_last_axes_are_left_to_a_product() -> None:
    """It reads them in either order, and the other Transpose copies rows."""
    assert_refuses(
        TransposeTranspose,
        """(float[N,2,3,4] q, float[N,5,2,4] k) => (float[N,2,3,5] y) {
            t = Transpose<perm=[0, 2, 1, 3]>(k)
            s = Transpose<perm=[0, 1, 3, 2]>(t)
            y = MatMul(q, s)
        }""",
        "products read the last axes in either order",
    )


def test_one_transpose_is_left_alone() -> None:
    """There is nothing to join."""
    assert_refuses(TransposeTranspose, "(float[2,N] x) => (float[N,2] y) {y = Transpose(x)}")


def test_a_transpose_of_a_size_of_one_is_a_reshape() -> None:
    """The elements stay in their order."""
    assert_rewrites(
        TransposeEqualReshape,
        """(float[N,M,1,8] x) => (float[N,1,M,8] y) {y = Transpose<perm=[0, 2, 1, 3]>(x)}""",
        """(float[N,M,1,8] x) => (float[N,1,M,8] y) <int64[4] s = {0, 1, -1, 8}> {
            y = Reshape(x, s)
        }""",
    )


def test_a_transpose_that_moves_elements() -> None:
    """It is no Reshape."""
    assert_refuses(
        TransposeEqualReshape,
        "(float[N,M,2] x) => (float[N,2,M] y) {y = Transpose<perm=[0, 2, 1]>(x)}",
    )


def test_a_shape_that_cannot_be_written() -> None:
    """Two symbols change their place."""
    assert_refuses(
        TransposeEqualReshape,
        "(float[1,N,M] x) => (float[N,M,1] y) {y = Transpose<perm=[1, 2, 0]>(x)}",
        "the shape cannot be written down",
    )


def test_transposed_operands() -> None:
    """One Transpose instead of two, after the sum."""
    assert_rewrites(
        TransposeElementwise,
        """(float[2,3] a, float[2,3] b) => (float[3,2] y) {
            s = Transpose<perm=[1, 0]>(a)
            t = Transpose<perm=[1, 0]>(b)
            y = Add(s, t)
        }""",
        """(float[2,3] a, float[2,3] b) => (float[3,2] y) {
            s = Add(a, b)
            y = Transpose<perm=[1, 0]>(s)
        }""",
    )


def test_transposes_cancel_across_a_function() -> None:
    """And across a product with a number."""
    assert_rewrites(
        TransposeElementwise,
        """(float[2,3,4] x) => (float[2,3,4] y, float[2,3,4] z) <float c = {3}> {
            s = Transpose<perm=[1, 2, 0]>(x)
            e = Exp(s)
            y = Transpose<perm=[2, 0, 1]>(e)
            t = Transpose<perm=[1, 2, 0]>(x)
            m = Mul(c, t)
            z = Transpose<perm=[2, 0, 1]>(m)
        }""",
        """(float[2,3,4] x) => (float[2,3,4] y, float[2,3,4] z) <float c = {3}> {
            y = Exp(x)
            z = Mul(c, x)
        }""",
        count=2,
    )


def test_a_transposed_operand_and_another() -> None:
    """The other one would have to be transposed instead."""
    assert_refuses(
        TransposeElementwise,
        """(float[2,3] a, float[3,2] b) => (float[3,2] y) {
            s = Transpose<perm=[1, 0]>(a)
            y = Add(s, b)
        }""",
    )


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
