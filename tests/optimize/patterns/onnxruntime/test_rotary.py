"""Rotary embedding as one kernel."""

from __future__ import annotations

import pytest

from dort_rewriter.optimize.patterns.onnxruntime.attention import ContribRotaryEmbedding
from dort_rewriter.runtime.kernel_query import kernel_query
from tests.optimize.rewrites import assert_refuses, assert_rewrites

CONSTANTS = """<int64[1] start = {0}, int64[1] half = {4}, int64[1] end = {9223372036854775807},
    int64[1] axis = {3}, int64[1] one = {1}, float scale = {0.5}>"""
TABLES = """
    f = Concat<axis=2>(angle, angle)
    cf = Cos(f)
    cs = Mul(cf, scale)
    cos = Unsqueeze(cs, one)
    sf = Sin(f)
    sin = Unsqueeze(sf, one)
"""
ROTATED = """
    a = Slice(x, start, half, axis, one)
    b = Slice(x, half, end, axis, one)
    n = Neg(b)
    r = Concat<axis=3>(n, a)
"""
BODY = f"{TABLES} {ROTATED} p = Mul(x, cos) q = Mul(r, sin) y = Add(p, q)"
HEADER = "(float[B,2,S,8] x, float[1,S,4] angle) => (float[B,2,S,8] y)"
FAST = kernel_query()("RotaryEmbedding", "com.microsoft", 1, [1, 7, 1, 1])


@pytest.mark.skipif(not FAST, reason="the kernel is slower than its parts")
@pytest.mark.parametrize(
    "body", [BODY, BODY.replace("(p, q)", "(q, p)").replace("r, sin", "sin, r")]
)
def test_a_rotary_embedding(body: str) -> None:
    """Half of the tables is computed."""
    assert_rewrites(
        ContribRotaryEmbedding,
        f"{HEADER} {CONSTANTS} {{{body}}}",
        f"""{HEADER} <int64[1] first = {{0}}, int64[2] table = {{-1, 4}}, float scale = {{0.5}},
        int64[1] one = {{1}}> {{
            cf = Cos(angle)
            cs = Mul(cf, scale)
            cu = Unsqueeze(cs, one)
            cos = Reshape(cu, table)
            sf = Sin(angle)
            su = Unsqueeze(sf, one)
            sin = Reshape(su, table)
            y = com.microsoft.RotaryEmbedding(x, first, cos, sin)
        }}""",
        reference=False,
    )


@pytest.mark.parametrize(
    ("header", "body", "reason"),
    [
        (HEADER, BODY.replace("Slice(x, start, half", "Slice(x, half, end"), None),
        (HEADER, BODY.replace("Neg(b)", "Exp(b)"), None),
        (HEADER.replace("float[1,S,4] angle", "float[1,S,4] angle, float[1,S,4] z"),
         BODY.replace("(angle, angle)", "(angle, z)"), "the halves of the table may differ"),
        (HEADER.replace("[1,S,4]", "[B,S,4]"), BODY,
         "the table is not that of all batches and heads"),
        (HEADER.replace("[1,S,4]", "[1,1,4]"), BODY, "the table has other positions"),
    ],
)  # fmt: skip
def test_what_it_refuses(header: str, body: str, reason: str | None) -> None:
    """And why."""
    assert_refuses(ContribRotaryEmbedding, f"{header} {CONSTANTS} {{{body}}}", reason)


def test_a_kernel_that_is_slower_is_left_alone() -> None:
    """onnxruntime 1.19's, or none at all."""
    assert_refuses(
        ContribRotaryEmbedding,
        f"{HEADER} {CONSTANTS} {{{BODY}}}",
        "no kernel that is faster for the type",
        kernels=False,
    )
