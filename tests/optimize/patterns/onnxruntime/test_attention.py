"""Attention as one kernel, in inference graphs."""

from __future__ import annotations

import numpy as np
import pytest

from dort_rewriter.optimize.patterns.onnxruntime.attention import MultiHeadAttention
from dort_rewriter.runtime.kernel_query import has_kernel
from tests.optimize.rewrites import assert_refuses, assert_rewrites

INPUTS = "float[B,3,4,8] q, float[B,3,5,8] k, float[B,3,5,8] v"
RESULT = "float[B,3,4,8] y"
CONSTANTS = "<float s = {0.25}, float zero = {0.0}, float low = {-inf}, int64[1] last = {-1}>"
SCORES = "a = Mul(q, s) t = Transpose<perm=[0, 1, 3, 2]>(k) c = MatMul(a, t)"
SWAP = "Transpose<perm=[0, 2, 1, 3]>"
FUSED = f"""
    turned = {SWAP}(q)
    flat = Reshape(turned, three)
    o = com.microsoft.MultiHeadAttention<num_heads=3, scale=0.25>(flat, k, v)
    heads = Reshape(o, four)
    y = {SWAP}(heads)
"""
SHAPES = "int64[3] three = {0, 0, 24}, int64[4] four = {0, 0, 3, 8}"
ONE_HEAD = has_kernel(  # onnxruntime 1.19 wants a bias for each head
    "MultiHeadAttention",
    "com.microsoft",
    1,
    [1, 1, 1, None, None, 1],
    attributes={"num_heads": 3},
    shapes=[(2, 4, 24), (2, 3, 5, 8), (2, 3, 5, 8), None, None, (1, 1, 4, 5)],
)


@pytest.mark.parametrize(
    "body",
    [
        f"{SCORES} p = Softmax<axis=-1>(c) y = MatMul(p, v)",
        """t = Transpose<perm=[0, 1, 3, 2]>(k) c = MatMul(q, t) e = Mul(c, s)
        p = Softmax<axis=3>(e) y = MatMul(p, v)""",
        """c = com.microsoft.FusedMatMul<transB=1, alpha=0.25>(q, k)
        p = Softmax<axis=-1>(c) y = MatMul(p, v)""",
    ],
)
def test_attention_without_a_bias(body: str) -> None:
    """Scaled before, after, or within the product."""
    assert_rewrites(
        MultiHeadAttention,
        f"({INPUTS}) => ({RESULT}) {CONSTANTS} {{{body}}}",
        f"({INPUTS}) => ({RESULT}) <{SHAPES}> {{{FUSED}}}",
        reference=False,
    )


@pytest.mark.parametrize("order", ["Add(c, bias)", "Add(bias, c)"])
def test_a_bias_of_all_heads(order: str) -> None:
    """It is an input of the kernel."""
    assert_rewrites(
        MultiHeadAttention,
        f"({INPUTS}, float[B,3,4,5] bias) => ({RESULT}) {CONSTANTS}"
        f" {{{SCORES} b = {order} p = Softmax<axis=-1>(b) y = MatMul(p, v)}}",
        f"({INPUTS}, float[B,3,4,5] bias) => ({RESULT}) <{SHAPES}>"
        f" {{{FUSED.replace('k, v)', 'k, v, , , bias)')}}}",
        reference=False,
    )


PLAIN = f"{SCORES} p = Softmax<axis=-1>(c) y = MatMul(p, v)"
BIASED = f"{SCORES} b = Add(c, bias) p = Softmax<axis=-1>(b) y = MatMul(p, v)"
HIDES = """m = ReduceMax<keepdims=1>({0}, last) e = Equal(m, low)
    n = ReduceSum<keepdims=1>({0}, last) f = Equal(n, low) h = And(e, f)"""
MASKED = f"""{SCORES} b = Add(c, bias) p = Softmax<axis=-1>(b) {HIDES.format("b")}
    w = Where(h, zero, p) y = MatMul(w, v)"""
KEPT = f"""
    {HIDES.format("bias")} shown = Where(h, zero, bias)
    turned = Transpose<perm=[0, 2, 1, 3]>(q)
    flat = Reshape(turned, three)
    o = com.microsoft.MultiHeadAttention<num_heads=3, scale=0.25>(flat, k, v, , , shown)
    rows = Squeeze(h, one) none = Sub(o, o)
    z = Where(rows, none, o)
    heads = Reshape(z, four)
    y = Transpose<perm=[0, 2, 1, 3]>(heads)
"""


@pytest.mark.skipif(not ONE_HEAD, reason="this onnxruntime wants a bias for each head")
def test_a_bias_for_all_batches() -> None:
    """The kernel repeats it."""
    assert_rewrites(
        MultiHeadAttention,
        f"({INPUTS}, float[1,3,4,5] bias) => ({RESULT}) {CONSTANTS} {{{BIASED}}}",
        f"({INPUTS}, float[1,3,4,5] bias) => ({RESULT}) <{SHAPES}>"
        f" {{{FUSED.replace('k, v)', 'k, v, , , bias)')}}}",
        reference=False,
    )


@pytest.mark.skipif(not ONE_HEAD, reason="this onnxruntime wants a bias for each head")
@pytest.mark.parametrize("bias", ["[B,1,1,5]", "[1,5]"])
def test_a_bias_for_all_queries(bias: str) -> None:
    """Its row is repeated."""
    made, axes = (
        ("many = Expand(bias, repeats)", "")
        if "B" in bias
        else (
            "whole = Unsqueeze(bias, axes) many = Expand(whole, repeats)",
            ", int64[2] axes = {0, 1}",
        )
    )
    assert_rewrites(
        MultiHeadAttention,
        f"({INPUTS}, float{bias} bias) => ({RESULT}) {CONSTANTS} {{{BIASED}}}",
        f"({INPUTS}, float{bias} bias) => ({RESULT})"
        f" <{SHAPES}, int64[4] repeats = {{1, 1, 4, 1}}{axes}>"
        f" {{{made} {FUSED.replace('k, v)', 'k, v, , , many)')}}}",
        reference=False,
    )


@pytest.mark.skipif(not ONE_HEAD, reason="this onnxruntime wants a bias for each head")
@pytest.mark.parametrize("name", ["", "q", "k", "v"])
def test_rows_without_any_key_stay_zero(name: str) -> None:
    """The mask tells which, once for all heads; a NaN that they meet is kept."""
    generator = np.random.default_rng(0)
    inputs = {
        name: generator.normal(size=(2, 3, n, 8)).astype(np.float32)
        for name, n in (("q", 4), ("k", 5), ("v", 5))
    }
    inputs["bias"] = np.where(generator.random((2, 1, 4, 5)) < 0.5, 0, -np.inf).astype(np.float32)
    inputs["bias"][1, 0, 2] = -np.inf
    if name:
        inputs[name][1, 1, 2, 3] = np.nan
    assert_rewrites(
        MultiHeadAttention,
        f"({INPUTS}, float[B,1,4,5] bias) => ({RESULT}) {CONSTANTS} {{{MASKED}}}",
        f"""({INPUTS}, float[B,1,4,5] bias) => ({RESULT}) <{SHAPES}, float zero = {{0.0}},
        float low = {{-inf}}, int64[1] last = {{-1}}, int64[1] one = {{1}}> {{{KEPT}}}""",
        inputs=inputs,
        reference=False,
    )


CAUSAL = """float[4,4] bias = {0.0, -inf, -inf, -inf, 0.0, 0.0, -inf, -inf,
    0.0, 0.0, 0.0, -inf, 0.0, 0.0, 0.0, 0.0}"""


@pytest.mark.parametrize("body", [BIASED, MASKED])
def test_a_causal_bias_is_an_attribute(body: str) -> None:
    """A constant, with as many queries as keys; no row of it is without any key."""
    inputs = INPUTS.replace("3,5,8", "3,4,8")
    fused = FUSED.replace("scale=0.25", "scale=0.25, unidirectional=1")
    assert_rewrites(
        MultiHeadAttention,
        f"({inputs}) => ({RESULT}) {CONSTANTS[:-1]}, {CAUSAL}> {{{body}}}",
        f"({inputs}) => ({RESULT}) <{SHAPES}> {{{fused}}}",
        reference=False,
    )


@pytest.mark.skipif(ONE_HEAD, reason="this onnxruntime takes a bias for all heads at once")
def test_a_kernel_that_wants_a_bias_for_each_head() -> None:
    """It is asked. NOTE: onnxruntime 1.19 reads a bias for all batches wrongly."""
    assert_refuses(
        MultiHeadAttention,
        f"({INPUTS}, float[1,3,4,5] bias) => ({RESULT}) {CONSTANTS} {{{BIASED}}}",
        "no kernel for these types and shapes",
    )
    assert_refuses(
        MultiHeadAttention,
        f"({INPUTS}, float[B,1,4,5] bias) => ({RESULT}) {CONSTANTS} {{{MASKED}}}",
        "no kernel for these types and shapes",
    )


@pytest.mark.parametrize(
    ("inputs", "results", "body", "reason"),
    [
        (INPUTS, f"{RESULT}, float[B,3,4,5] p", PLAIN, "others read the probabilities"),
        (INPUTS, f"{RESULT}, float[B,3,4,5] c", PLAIN, "others read the scores"),
        (f"{INPUTS}, float[4,1] bias", RESULT, BIASED,
         "the bias has not all queries and keys"),
        (f"{INPUTS}, float[B,1,4,1] bias", RESULT, BIASED,
         "the bias has not all queries and keys"),
        (INPUTS.replace("B,3,4,8", "B,H,4,8").replace("B,3,5,8", "B,H,5,8"),
         "float[B,H,4,8] y", PLAIN, "heads of unknown number or size"),
        (INPUTS, RESULT, PLAIN.replace("axis=-1", "axis=1"), None),
    ],
)  # fmt: skip
def test_what_it_refuses(inputs: str, results: str, body: str, reason: str | None) -> None:
    """And why."""
    assert_refuses(MultiHeadAttention, f"({inputs}) => ({results}) {CONSTANTS} {{{body}}}", reason)
