"""Keys and values that several heads share are not copied for torch's attention of one query."""

from __future__ import annotations

import pytest

from dort_rewriter.optimize.patterns.kernels.attention import TorchSharedHeads
from tests.optimize.rewrites import assert_refuses, assert_rewrites

FLASH = "dort_rewriter._scaled_dot_product_flash_attention_for_cpu"
REPEATED = """
    {0}5 = Unsqueeze({0}, two) {0}e = Expand({0}5, many) {0}r = Reshape({0}e, whole)
"""
KNOWN = """float[2,2,1,9,8] k5, float[2,2,1,9,8] v5, float[2,2,3,9,8] ke, float[2,2,3,9,8] ve,
    float[2,6,9,8] kr, float[2,6,9,8] vr, float[2,6,{rows}] s,
    int64[1] two = {{2}}, int64[5] many = {{1, 1, 3, 1, 1}}, int64[4] whole = {{2, 6, 9, 8}}"""


def graph(
    attention: str, mask: str = "", rows: int = 1, result: str = "2,6,1,8", more: str = ""
) -> str:
    given = f"(float[2,6,{rows},8] q, float[2,2,9,8] k, float[2,2,9,8] v{mask})"
    head = f"{given} => (float[{result}] y{more}) <{KNOWN.format(rows=rows)}>"
    return f"{head} {{ {REPEATED.format('k')} {REPEATED.format('v')} {attention} }}"


@pytest.mark.parametrize("order", ["", ", order0 = [0, 2, 1, 3]"], ids=["as is", "moved"])
@pytest.mark.parametrize("mask", ["", ", float[2,1,1,9] m", ", float[1,9] m"], ids=str)
def test_queries_of_a_group_are_rows(mask: str, order: str) -> None:
    last = ", m" if mask else ""
    how = f"{FLASH}<is_causal = 0, scale = 0.3"
    result = "2,1,6,8" if order else "2,6,1,8"
    given = f"(float[2,6,1,8] q, float[2,2,9,8] k, float[2,2,9,8] v{mask})"
    shape = "{0, 1, 6, 8}" if order else "{0, 6, 1, 8}"
    assert_rewrites(
        TorchSharedHeads,
        graph(f"y, s = {how}{order}>(q, kr, vr{last})", mask, result=result),
        f"""{given} => (float[{result}] y) <int64[4] a = {{0, 2, 3, 8}}, int64[4] b = {shape}> {{
            r = Reshape(q, a) t, s = {how}>(r, k, v{last}) y = Reshape(t, b)
        }}""",
        reference=False,
        rtol=1e-6,
        atol=1e-6,
    )


FULL = ", float[2,6,1,9] m"
REFUSED = {
    "more queries": (
        graph(f"y, s = {FLASH}<is_causal = 0>(q, kr, vr)", rows=4, result="2,6,4,8"),
        "there are several queries for a head",
    ),
    "causal": (
        graph(f"y, s = {FLASH}<is_causal = 1>(q, kr, vr)"),
        "there are several queries for a head",
    ),
    "a mask for each head": (
        graph(f"y, s = {FLASH}<is_causal = 0>(q, kr, vr, m)", FULL),
        "the mask is not the same for all heads",
    ),
    "the sums are read": (
        graph(f"y, s = {FLASH}<is_causal = 0>(q, kr, vr) z = Neg(s)", more=", float[2,6,1] z"),
        "the sums are read",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_heads_that_are_repeated(case: str) -> None:
    model, reason = REFUSED[case]
    assert_refuses(TorchSharedHeads, model, reason)
