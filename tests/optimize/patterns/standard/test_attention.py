"""Attention as the one operator of opset 23."""

from __future__ import annotations

import numpy as np
import pytest

from dort_rewriter.optimize.patterns.standard.attention import Attention
from dort_rewriter.ort_module import max_opset
from tests.optimize.rewrites import assert_refuses, assert_rewrites

INPUTS = "float[B,4,3,8] q, float[B,4,5,8] k, float[B,4,5,8] v"
RESULT = "float[B,4,3,8] y"
SCORES = "t = Transpose<perm=[0, 1, 3, 2]>(k) c = MatMul(q, t) e = Mul(c, s)"
SCALE = "<float s = {0.25}>"

needs_opset_23 = pytest.mark.skipif(max_opset() < 23, reason="this onnxruntime has no opset 23")


@needs_opset_23
def test_without_a_bias() -> None:
    assert_rewrites(
        Attention,
        f"({INPUTS}) => ({RESULT}) {SCALE} {{{SCORES} p = Softmax<axis=3>(e) y = MatMul(p, v)}}",
        f"({INPUTS}) => ({RESULT}) {{y = Attention<scale=0.25>(q, k, v)}}",
        opset=23,
    )


@needs_opset_23
@pytest.mark.parametrize("bias", ["[3,5]", "[1,1,3,5]", "[B,1,3,5]", "[1,4,3,5]", "[B,4,3,5]"])
def test_with_a_bias(bias: str) -> None:
    """Of all queries and keys; of one batch or head, or all."""
    assert_rewrites(
        Attention,
        f"""({INPUTS}, float{bias} bias) => ({RESULT}) {SCALE}
        {{{SCORES} a = Add(e, bias) p = Softmax<axis=3>(a) y = MatMul(p, v)}}""",
        f"({INPUTS}, float{bias} bias) => ({RESULT}) {{y = Attention<scale=0.25>(q, k, v, bias)}}",
        opset=23,
    )


HIDES = """m = ReduceMax<keepdims=1>({0}, last) i = Equal(m, low)
    n = ReduceSum<keepdims=1>({0}, last) j = Equal(n, low) h = And(i, j)"""


@needs_opset_23
@pytest.mark.parametrize("name", ["", "q", "k", "v"])
def test_rows_without_any_key_are_zero(name: str) -> None:
    """As torch has it; the operator gives NaN there. A NaN that they meet is kept."""
    bias = np.zeros((3, 5), np.float32)
    bias[1] = bias[2, 3:] = -np.inf
    generator = np.random.default_rng(0)
    given = {
        n: generator.normal(size=(2, 4, s, 8)).astype("f")
        for n, s in zip("qkv", (3, 5, 5), strict=True)
    }
    if name:
        given[name][1, 2, 1, 3] = np.nan
    assert_rewrites(
        Attention,
        f"""({INPUTS}, float[3,5] bias) => ({RESULT})
        <float s = {{0.25}}, float low = {{-inf}}, float zero = {{0.0}}, int64[1] last = {{-1}}>
        {{{SCORES} a = Add(e, bias) p = Softmax<axis=3>(a) {HIDES.format("a")}
          w = Where(h, zero, p) y = MatMul(w, v)}}""",
        f"""({INPUTS}, float[3,5] bias) => ({RESULT})
        <float low = {{-inf}}, float zero = {{0.0}}, int64[1] last = {{-1}}>
        {{{HIDES.format("bias")} shown = Where(h, zero, bias)
          z = Attention<scale=0.25>(q, k, v, shown) none = Sub(z, z) y = Where(h, none, z)}}""",
        opset=23,
        inputs={**given, "bias": bias},
    )


GROUPED = "float[B,4,3,8] q, float[B,2,5,8] k1, float[B,2,5,8] v1"
REPEATED = """
    k2 = Unsqueeze(k1, two) k3 = Expand(k2, twice) k = Reshape(k3, merged)
    v2 = Unsqueeze(v1, two) v3 = Expand(v2, twice) v = Reshape(v3, merged)
"""
CONSTANTS = """<float s = {0.25}, int64[1] two = {2}, int64[5] twice = {1, 1, 2, 1, 1},
    int64[4] merged = {0, 4, 5, 8}>"""


@needs_opset_23
def test_groups_of_queries() -> None:
    """Heads are not repeated."""
    assert_rewrites(
        Attention,
        f"""({GROUPED}) => ({RESULT}) {CONSTANTS}
        {{{REPEATED} {SCORES} p = Softmax<axis=3>(e) y = MatMul(p, v)}}""",
        f"({GROUPED}) => ({RESULT}) {{y = Attention<scale=0.25>(q, k1, v1)}}",
        opset=23,
    )


@needs_opset_23
def test_what_repeats_the_heads_in_another_order_stays() -> None:
    """``concat(k, k)`` is not ``repeat_interleave(k)``."""
    other = REPEATED.replace("two)", "one)")
    constants = CONSTANTS.replace("two = {2}", "one = {1}").replace("1, 1, 2, 1", "1, 2, 1, 1")
    assert_rewrites(
        Attention,
        f"""({GROUPED}) => ({RESULT}) {constants}
        {{{other} {SCORES} p = Softmax<axis=3>(e) y = MatMul(p, v)}}""",
        f"""({GROUPED}) => ({RESULT}) {constants}
        {{{other} y = Attention<scale=0.25>(q, k, v)}}""",
        opset=23,
    )


def test_older_opsets_have_no_such_operator() -> None:
    body = f"{{{SCORES} p = Softmax<axis=3>(e) y = MatMul(p, v)}}"
    assert_refuses(Attention, f"({INPUTS}) => ({RESULT}) {SCALE} {body}")


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (f"({RESULT}", f"({RESULT}, float[B,4,3,5] p", "others read the probabilities"),
        (f"({RESULT}", f"({RESULT}, float[B,4,3,5] a", "others read the scores"),
        ("float[3,5] bias", "float[1,5] bias", "the bias has not all queries and keys"),
        ("float[B,4,5,8] v", "float[1,4,5,8] v", "queries, keys and values do not fit"),
        ("float", "double", "it would be computed in float32"),
    ],
)
def test_what_is_left_alone(old: str, new: str, reason: str) -> None:
    text = f"""({INPUTS}, float[3,5] bias) => ({RESULT}) {SCALE}
        {{{SCORES} a = Add(e, bias) p = Softmax<axis=3>(a) y = MatMul(p, v)}}"""
    assert_refuses(Attention, text.replace(old, new), reason, opset=23)
