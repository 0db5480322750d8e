"""What stands around a MatMul or a Gemm becomes part of it."""

from __future__ import annotations

import pytest

from dort_rewriter.optimize.patterns.base import Rule
from dort_rewriter.optimize.patterns.standard.gemms import (
    GemmTranspose,
    MatMulAdd,
    TransposeMatMul,
)
from tests.optimize.rewrites import assert_refuses, assert_rewrites


def test_a_transpose_is_a_flag_of_gemm() -> None:
    """On the right, as every linear layer has it."""
    assert_rewrites(
        TransposeMatMul,
        """(float[N,4] x, float[5,4] w) => (float[N,5] y) {
            t = Transpose<perm=[1, 0]>(w)
            y = MatMul(x, t)
        }""",
        "(float[N,4] x, float[5,4] w) => (float[N,5] y) {y = Gemm<transB=1>(x, w)}",
    )


def test_both_sides_are_transposed() -> None:
    """One application takes both."""
    assert_rewrites(
        TransposeMatMul,
        """(float[4,N] x, float[5,4] w) => (float[N,5] y) {
            s = Transpose(x)
            t = Transpose(w)
            y = MatMul(s, t)
        }""",
        "(float[4,N] x, float[5,4] w) => (float[N,5] y) {y = Gemm<transA=1,transB=1>(x, w)}",
    )


def test_a_flag_is_taken_back() -> None:
    """The third input and the factors of a Gemm stay."""
    assert_rewrites(
        TransposeMatMul,
        """(float[N,4] x, float[4,5] w, float[5] b) => (float[N,5] y) {
            t = Transpose(w)
            y = Gemm<transB=1,alpha=2.0>(x, t, b)
        }""",
        """(float[N,4] x, float[4,5] w, float[5] b) => (float[N,5] y) {
            y = Gemm<alpha=2.0>(x, w, b)
        }""",
    )


def test_more_dimensions_are_no_gemm() -> None:
    """Gemm multiplies matrices."""
    assert_refuses(
        TransposeMatMul,
        """(float[2,3,4] x, float[2,5,4] w) => (float[2,3,5] y) {
            t = Transpose<perm=[0, 2, 1]>(w)
            y = MatMul(x, t)
        }""",
    )


def test_a_vector_is_left_alone() -> None:
    """onnxruntime computes a transposed matrix times a vector wrongly once they are fused."""
    assert_refuses(
        TransposeMatMul,
        """(float[4,3] x, float[4] w) => (float[3] y) {
            t = Transpose(x)
            y = MatMul(t, w)
        }""",
    )


def test_integers_have_no_gemm() -> None:
    """onnxruntime multiplies matrices of integers by MatMul only."""
    assert_refuses(
        TransposeMatMul,
        """(int32[3,4] x, int32[5,4] w) => (int32[3,5] y) {
            t = Transpose(w)
            y = MatMul(x, t)
        }""",
        "Gemm has no kernel for this type",
    )


@pytest.mark.parametrize("bias", ["float[5]", "float[3,5]", "float[3,1]", "float[1]", "float"])
def test_a_sum_is_the_third_input(bias: str) -> None:
    """Whatever broadcasts to the product."""
    for order in ("p, b", "b, p"):
        assert_rewrites(
            MatMulAdd,
            f"""(float[3,4] x, float[4,5] w, {bias} b) => (float[3,5] y) {{
                p = MatMul(x, w)
                y = Add({order})
            }}""",
            f"(float[3,4] x, float[4,5] w, {bias} b) => (float[3,5] y) {{y = Gemm(x, w, b)}}",
        )


def test_a_larger_sum_is_left_alone() -> None:
    """Gemm broadcasts its third input only."""
    assert_refuses(
        MatMulAdd,
        """(float[1,4] x, float[4,5] w, float[3,5] b) => (float[3,5] y) {
            p = MatMul(x, w)
            y = Add(p, b)
        }""",
        "the sum is larger than the product",
    )


def test_a_product_that_is_needed_is_not_computed_twice() -> None:
    """It is an output."""
    before = """(float[3,4] x, float[4,5] w, float[5] b) => (float[3,5] y, float[3,5] p) {
        p = MatMul(x, w)
        y = Add(p, b)
    }"""
    assert_refuses(MatMulAdd, before, "the product is needed without the sum")


def test_a_transposed_product_swaps_its_factors() -> None:
    """The gradient of a weight as torch writes it."""
    assert_rewrites(
        GemmTranspose,
        """(float[N,4] x, float[N,5] g) => (float[5,4] y) {
            p = Gemm<transA=1>(x, g)
            y = Transpose(p)
        }""",
        "(float[N,4] x, float[N,5] g) => (float[5,4] y) {y = Gemm<transA=1>(g, x)}",
    )


def test_a_product_with_a_sum_is_not_swapped() -> None:
    """Its third input would have to be transposed instead."""
    assert_refuses(
        GemmTranspose,
        """(float[3,4] x, float[4,5] w, float[5] b) => (float[5,3] y) {
            p = Gemm(x, w, b)
            y = Transpose(p)
        }""",
    )


def test_a_product_that_is_returned_is_not_swapped() -> None:
    """It would be computed twice."""
    assert_refuses(
        GemmTranspose,
        """(float[3,4] x, float[4,5] w) => (float[5,3] y, float[3,5] p) {
            p = MatMul(x, w)
            y = Transpose(p)
        }""",
        "the product is needed as it is",
    )


@pytest.mark.parametrize(
    ("rule", "nodes"),
    [
        (TransposeMatMul, "t = Transpose<perm=[1, 0]>(w) y = MatMul(x, t)"),
        (MatMulAdd, "t = MatMul(x, w) y = Add(t, x)"),
        (GemmTranspose, "t = MatMul(x, w) y = Transpose<perm=[1, 0]>(t)"),
    ],
)
def test_a_gemm_needs_a_kernel(rule: type[Rule], nodes: str) -> None:
    """A provider that has none keeps what it was given, whatever the type."""
    assert_refuses(
        rule,
        f"(float[4,4] x, float[4,4] w) => (float[4,4] y) {{{nodes}}}",
        "Gemm has no kernel for this type",
        kernels=False,
    )
