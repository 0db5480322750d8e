"""Softmax and its logarithm, written by hand."""

from __future__ import annotations

import pytest

from dort_rewriter.optimize.patterns.base import Rule
from dort_rewriter.optimize.patterns.standard.layers import LogSoftmax, Softmax
from tests.optimize.rewrites import assert_refuses, assert_rewrites

INSIDE = """m = ReduceMax<keepdims=1>(x, axis) c = Sub(x, m) e = Exp(c)
    s = ReduceSum<keepdims=1>(e, axis)"""
PARTS: dict[type[Rule], str] = {
    Softmax: f"{{{INSIDE} y = Div(e, s)}}",
    LogSoftmax: f"{{{INSIDE} l = Log(s) y = Sub(c, l)}}",
}
RULES = list(PARTS)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("axis", [-1, 1])
def test_the_parts_become_one(rule: type[Rule], axis: int) -> None:
    """Over any one axis, sizes unknown too."""
    assert_rewrites(
        rule,
        f"(float[2,N,5] x) => (float[2,N,5] y) <int64[1] axis = {{{axis}}}> {PARTS[rule]}",
        f"(float[2,N,5] x) => (float[2,N,5] y) {{y = {rule.__name__}<axis={axis % 3}>(x)}}",
    )


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("int64[1] axis = {-1}", "int64[2] axis = {1, -1}", "not over one axis"),
        ("ReduceMax<keepdims=1>(x, axis)", "ReduceMax<keepdims=1>(x, first)", "not over one axis"),
        ("ReduceMax<keepdims=1>(x, axis)", "ReduceMax<keepdims=1>(z, axis)", None),
        ("ReduceMax", "ReduceMin", None),
        ("=> (float[2,N,5] y)", "=> (float[2,N,5] y, float[2,N,5] SHARED)",
         "others read what is inside"),
    ],
)  # fmt: skip
def test_what_is_no_softmax(rule: type[Rule], old: str, new: str, reason: str | None) -> None:
    """And a training graph that keeps what is inside."""
    text = f"""(float[2,N,5] x, float[2,N,5] z) => (float[2,N,5] y)
        <int64[1] axis = {{-1}}, int64[1] first = {{0}}> {PARTS[rule]}"""
    text = text.replace(old, new).replace("SHARED", "e" if rule is Softmax else "c")
    assert_refuses(rule, text, reason)


@pytest.mark.parametrize("rule", RULES)
def test_without_a_kernel_nothing_is_done(rule: type[Rule]) -> None:
    assert_refuses(
        rule,
        f"(float[2,5] x) => (float[2,5] y) <int64[1] axis = {{-1}}> {PARTS[rule]}",
        "no kernel for the type",
        kernels=False,
    )
