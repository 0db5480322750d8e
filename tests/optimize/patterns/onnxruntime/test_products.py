"""Matrix products that transpose and scale what they read."""

from __future__ import annotations

import pytest

from dort_rewriter.optimize.patterns.onnxruntime.products import (
    FusedMatMul,
    FusedMatMulScale,
    FusedMatMulTranspose,
)
from tests.optimize.rewrites import assert_refuses, assert_rewrites

SWAP = "Transpose<perm=[0, 2, 1]>"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "(float[N,4,3] a, float[N,4,5] b) => (float[N,3,5] y)"
            f" {{t = {SWAP}(a) y = MatMul(t, b)}}",
            "(float[N,4,3] a, float[N,4,5] b) => (float[N,3,5] y)"
            " {y = com.microsoft.FusedMatMul<transA=1, transB=0, alpha=1.0>(a, b)}",
        ),
        (
            "(float[N,3,4] a, float[N,5,4] b) => (float[N,3,5] y)"
            f" {{t = {SWAP}(b) y = MatMul(a, t)}}",
            "(float[N,3,4] a, float[N,5,4] b) => (float[N,3,5] y)"
            " {y = com.microsoft.FusedMatMul<transA=0, transB=1, alpha=1.0>(a, b)}",
        ),
        (
            f"""(float[N,4,3] a, float[N,5,4] b) => (float[N,3,5] y)
            {{s = {SWAP}(a) t = {SWAP}(b) y = MatMul(s, t)}}""",
            "(float[N,4,3] a, float[N,5,4] b) => (float[N,3,5] y)"
            " {y = com.microsoft.FusedMatMul<transA=1, transB=1, alpha=1.0>(a, b)}",
        ),
        (
            f"""(float[N,3,4] a, float[N,4,5] b) => (float[N,3,5] y)
            {{s = {SWAP}(a) y = com.microsoft.FusedMatMul<transA=1, alpha=0.5>(s, b)}}""",
            "(float[N,3,4] a, float[N,4,5] b) => (float[N,3,5] y)"
            " {y = com.microsoft.FusedMatMul<transA=0, transB=0, alpha=0.5>(a, b)}",
        ),
    ],
)
def test_the_last_axes_of_either_input(before: str, after: str) -> None:
    """The product reads its input transposed."""
    assert_rewrites(FusedMatMul, before, after, reference=False)


def test_what_is_left_of_a_transpose_copies_rows() -> None:
    """Keys of several heads: the product takes over the part that moves the last axis."""
    assert_rewrites(
        FusedMatMul,
        """(float[N,2,3,4] q, float[N,5,2,4] k) => (float[N,2,3,5] y)
        {t = Transpose<perm=[0, 2, 3, 1]>(k) y = MatMul(q, t)}""",
        """(float[N,2,3,4] q, float[N,5,2,4] k) => (float[N,2,3,5] y) {
            t = Transpose<perm=[0, 2, 1, 3]>(k)
            y = com.microsoft.FusedMatMul<transA=0, transB=1, alpha=1.0>(q, t)
        }""",
        reference=False,
    )


def test_a_shared_transpose_stays_for_its_other_readers() -> None:
    """The product does not wait for it any more."""
    assert_rewrites(
        FusedMatMul,
        f"""(float[N,4,3] a, float[N,4,5] b) => (float[N,3,5] y, float[N,3,4] t)
        {{t = {SWAP}(a) y = MatMul(t, b)}}""",
        f"""(float[N,4,3] a, float[N,4,5] b) => (float[N,3,5] y, float[N,3,4] t)
        {{t = {SWAP}(a) y = com.microsoft.FusedMatMul<transA=1, transB=0, alpha=1.0>(a, b)}}""",
        reference=False,
    )


def test_a_product_with_a_vector_is_never_fused() -> None:
    """onnxruntime computes FusedMatMul of a transposed matrix and a vector wrongly."""
    assert_refuses(
        FusedMatMul,
        """(float[4,3] a, float[4] b) => (float[3] y) {t = Transpose<perm=[1, 0]>(a)
        y = MatMul(t, b)}""",
        "a vector, or an unknown rank",
    )
    assert_refuses(
        FusedMatMulScale,
        """(float[3,4] a, float[4] b) => (float[3] y) <float s = {2.0}> {t = Mul(a, s)
        y = MatMul(t, b)}""",
        "a vector, or an unknown rank",
    )


def test_a_cast_of_a_transpose_is_not_both_factors() -> None:
    """onnxruntime 1.19 takes the Transpose into such a node, and loses an input of it."""
    t = f"t = {SWAP}(x) c = Cast<to=1>(t)"
    reason = "a Transpose behind a Cast is read twice"
    signature = "(int16[2,3,4] x) => (float[2,3,3] y)"
    assert_refuses(FusedMatMul, f"{signature} {{{t} s = {SWAP}(c) y = MatMul(s, c)}}", reason)
    assert_refuses(
        FusedMatMulScale,
        f"""(int16[2,4,4] x) => (float[2,4,4] y) <float h = {{0.5}}>
        {{{t} s = Mul(c, h) y = MatMul(s, c)}}""",
        reason,
    )


@pytest.mark.parametrize(
    ("perm", "kernels", "reason"),
    [("[1, 0, 2]", True, None), ("[0, 2, 1]", False, "no kernel for the type")],
)
def test_transposes_that_stay(perm: str, kernels: bool, reason: str | None) -> None:
    """Of other axes, or where there is no kernel."""
    assert_refuses(
        FusedMatMul,
        f"""(float[4,4,4] a, float[4,4,4] b) => (float[4,4,4] y)
        {{t = Transpose<perm={perm}>(a) y = MatMul(t, b)}}""",
        reason,
        kernels=kernels,
    )


def test_a_transposed_product() -> None:
    """The factors change places."""
    assert_rewrites(
        FusedMatMulTranspose,
        f"""(float[N,3,4] a, float[N,4,5] b) => (float[N,5,3] y)
        {{p = MatMul(a, b) y = {SWAP}(p)}}""",
        "(float[N,3,4] a, float[N,4,5] b) => (float[N,5,3] y)"
        " {y = com.microsoft.FusedMatMul<transA=1, transB=1, alpha=1.0>(b, a)}",
        reference=False,
    )


def test_a_product_that_others_read_is_not_computed_twice() -> None:
    """It would be computed in both layouts."""
    assert_refuses(
        FusedMatMulTranspose,
        f"""(float[N,3,4] a, float[N,4,5] b) => (float[N,5,3] y, float[N,3,5] p)
        {{p = MatMul(a, b) y = {SWAP}(p)}}""",
        "others read the product",
    )


@pytest.mark.parametrize(
    ("body", "count"),
    [
        ("c = Mul(a, s) y = MatMul(c, b)", 1),
        ("c = Mul(s, b) y = MatMul(a, c)", 1),
        ("c = Div(a, q) y = MatMul(c, b)", 1),
        ("c = MatMul(a, b) y = Mul(c, s)", 1),
        ("c = MatMul(a, b) y = Div(c, q)", 1),
        ("c = Mul(a, s) d = MatMul(c, b) e = Mul(d, s) y = Div(e, s)", 3),
    ],
)
def test_a_scaled_product(body: str, count: int) -> None:
    """A number before or after becomes the factor of the product."""
    assert_rewrites(
        FusedMatMulScale,
        f"""(float[N,3,4] a, float[N,4,5] b) => (float[N,3,5] y)
        <float s = {{0.25}}, float q = {{4.0}}> {{{body}}}""",
        "(float[N,3,4] a, float[N,4,5] b) => (float[N,3,5] y)"
        " {y = com.microsoft.FusedMatMul<transA=0, transB=0, alpha=0.25>(a, b)}",
        count,
        reference=False,
    )


@pytest.mark.parametrize(
    ("header", "body", "reason"),
    [
        ("<float s = {0.0}>", "c = Mul(a, s) y = MatMul(c, b)", None),
        ("<float[3,1] s = {1, 2, 3}>", "c = Mul(a, s) y = MatMul(c, b)", None),
        ("<float s = {2.0}>", "c = Div(s, a) y = MatMul(c, b)", None),
    ],
)
def test_what_is_no_scale(header: str, body: str, reason: str | None) -> None:
    """Zero, a vector, and a number that is divided."""
    assert_refuses(
        FusedMatMulScale,
        f"(float[3,4] a, float[4,5] b) => (float[3,5] y) {header} {{{body}}}",
        reason,
    )


def test_a_scale_of_float64_stays() -> None:
    """The attribute would round it to float32."""
    assert_refuses(
        FusedMatMulScale,
        """(double[3,4] a, double[4,5] b) => (double[3,5] y) <double s = {0.1}>
        {c = Mul(a, s) y = MatMul(c, b)}""",
    )
