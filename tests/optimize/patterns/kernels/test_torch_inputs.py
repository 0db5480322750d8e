"""Transposes before torch's kernels: they read the tensor as it lies."""

from __future__ import annotations

import pytest

from dort_rewriter.optimize.patterns.kernels.transposes import TorchTranspose, TransposeTorch
from tests.optimize.rewrites import assert_refuses, assert_rewrites

CASES = {
    "the first factor": (
        "(float[4,3] a, float[4,5] b) => (float[3,5] y)",
        "t = Transpose<perm = [1, 0]>(a) y = dort_rewriter.mm(t, b)",
        "y = dort_rewriter.mm<perm0 = [1, 0]>(a, b)",
    ),
    "both": (
        "(float[4,3] a, float[5,4] b) => (float[3,5] y)",
        "t = Transpose(a) u = Transpose<perm = [1, 0]>(b) y = dort_rewriter.mm(t, u)",
        "y = dort_rewriter.mm<perm0 = [1, 0], perm1 = [1, 0]>(a, b)",
    ),
    "one that is read transposed already": (
        "(float[2,3,4] a, float[3,2,5] b) => (float[3,4,5] y)",
        "t = Transpose<perm = [1, 0, 2]>(a) y = dort_rewriter.bmm<perm0 = [0, 2, 1]>(t, b)",
        "y = dort_rewriter.bmm<perm0 = [1, 2, 0]>(a, b)",
    ),
    "there and back": (
        "(float[4,3] a, float[3,5] b, float[5] c) => (float[4,5] y)",
        "t = Transpose<perm = [1, 0]>(a) "
        "y = dort_rewriter.addmm<perm1 = [1, 0], beta = 1.0, alpha = 1.0>(c, t, b)",
        "y = dort_rewriter.addmm<beta = 1.0, alpha = 1.0>(c, a, b)",
    ),
    "one that others read": (
        "(float[4,3] a, float[4,5] b) => (float[3,5] y, float[3,4] t)",
        "t = Transpose<perm = [1, 0]>(a) y = dort_rewriter.mm(t, b)",
        "t = Transpose<perm = [1, 0]>(a) y = dort_rewriter.mm<perm0 = [1, 0]>(a, b)",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_it_becomes_steps_through_memory(case: str) -> None:
    """Of each input."""
    signature, before, after = CASES[case]
    assert_rewrites(
        TransposeTorch,
        f"{signature} {{ {before} }}",
        f"{signature} {{ {after} }}",
        reference=False,
    )


def test_other_products_are_left_alone() -> None:
    """Theirs are other rules."""
    assert_refuses(
        TransposeTorch,
        "(float[4,3] a, float[4,5] b) => (float[3,5] y) "
        "{ t = Transpose<perm = [1, 0]>(a) y = MatMul(t, b) }",
    )


FLASH = "dort_rewriter._scaled_dot_product_flash_attention_for_cpu"
SIGNATURE = "(float[2,5,3,8] q, float[2,3,6,8] k, float[2,3,6,8] v) =>"


def test_heads_are_not_moved_for_attention() -> None:
    """What it reads and gives; the result that has another order keeps its type."""
    assert_rewrites(
        TransposeTorch,
        f"{SIGNATURE} (float[2,3,5,8] y) <float[2,3,5] s> "
        f"{{ t = Transpose<perm = [0, 2, 1, 3]>(q) y, s = {FLASH}<is_causal = 0>(t, k, v) }}",
        f"{SIGNATURE} (float[2,3,5,8] y) <float[2,3,5] s> "
        f"{{ y, s = {FLASH}<perm0 = [0, 2, 1, 3], is_causal = 0>(q, k, v) }}",
        reference=False,
    )
    given = "(float[2,3,5,8] q, float[2,3,6,8] k, float[2,3,6,8] v) =>"
    assert_rewrites(
        TorchTranspose,
        f"{given} (float[2,5,3,8] y, float[2,3,5] s) <float[2,3,5,8] z> "
        f"{{ z, s = {FLASH}<is_causal = 0>(q, k, v) y = Transpose<perm = [0, 2, 1, 3]>(z) }}",
        f"{given} (float[2,5,3,8] y, float[2,3,5] s) "
        f"{{ y, s = {FLASH}<is_causal = 0, order0 = [0, 2, 1, 3]>(q, k, v) }}",
        reference=False,
    )


def test_rows_of_heads_stay_in_a_row() -> None:
    """torch's kernel reads them as neighbours."""
    assert_refuses(
        TransposeTorch,
        "(float[2,3,8,5] q, float[2,3,6,8] k, float[2,3,6,8] v) => (float[2,3,5,8] y) "
        "<float[2,3,5] s> "
        f"{{ t = Transpose<perm = [0, 1, 3, 2]>(q) y, s = {FLASH}<is_causal = 0>(t, k, v) }}",
    )


def test_a_result_that_others_read_stays() -> None:
    """As it is."""
    assert_refuses(
        TorchTranspose,
        "(float[2,3,5,8] q, float[2,3,6,8] k, float[2,3,6,8] v) => "
        "(float[2,5,3,8] y, float[2,3,5,8] r) <float[2,3,5,8] z, float[2,3,5] s> "
        f"{{ z, s = {FLASH}<is_causal = 0>(q, k, v) y = Transpose<perm = [0, 2, 1, 3]>(z) "
        "r = Neg(z) }",
    )
