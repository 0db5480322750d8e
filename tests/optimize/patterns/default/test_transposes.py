"""Transposes that undo or follow each other."""

from __future__ import annotations

from dort_rewriter.optimize.patterns.default.transposes import TransposeTranspose
from tests.optimize.rewrites import assert_refuses, assert_rewrites


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


def test_one_transpose_is_left_alone() -> None:
    """There is nothing to join."""
    assert_refuses(TransposeTranspose, "(float[2,N] x) => (float[N,2] y) {y = Transpose(x)}")
