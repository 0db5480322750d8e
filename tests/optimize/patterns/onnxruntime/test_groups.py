"""Attention with heads that groups of queries share."""

from __future__ import annotations

import copy
from collections import Counter

import onnx
import pytest
import torch

from dort_rewriter import OrtBackend
from dort_rewriter.optimize.patterns.onnxruntime.attention import (
    GroupQueryAttention,
    GroupQueryRotary,
)
from dort_rewriter.runtime.kernel_query import has_kernel, kernel_query
from tests.export.models import Named
from tests.optimize.rewrites import assert_refuses, assert_rewrites

INPUTS = "float[2,4,3,8] q, float[2,2,3,8] k, float[2,2,3,8] v"
RESULT = "float[2,4,3,8] y"
CONSTANTS = """int64[1] two = {2}, int64[5] groups = {1, 1, 2, 1, 1},
    int64[4] whole = {2, 4, 3, 8}, int64[1] last = {-1},
    float zero = {0.0}, float scale = {0.25}, float low = {-inf},
    bool[1,1,3,3] seen = {1, 0, 0, 1, 1, 0, 1, 1, 1}"""
REPEATED = """
    ks = Unsqueeze(k, two) ke = Expand(ks, groups) kr = Reshape(ke, whole)
    vs = Unsqueeze(v, two) ve = Expand(vs, groups) vr = Reshape(ve, whole)
    turned = Transpose<perm=[0, 1, 3, 2]>(kr) n = MatMul(q, turned) s = Mul(n, scale)"""
MASKED = f"""{REPEATED} bias = Where(seen, zero, low) b = Add(s, bias) p = Softmax<axis=-1>(b)
    m = ReduceMax<keepdims=1>(b, last) e = Equal(m, low) n1 = ReduceSum<keepdims=1>(b, last)
    f = Equal(n1, low) h = And(e, f) w = Where(h, zero, p) y = MatMul(w, vr)"""
BIASED = f"{REPEATED} b = Add(s, bias) p = Softmax<axis=-1>(b) y = MatMul(p, vr)"
SWAP = "Transpose<perm=[0, 2, 1, 3]>"
FUSED = f"""
    ks = Unsqueeze(k, two) vs = Unsqueeze(v, two)
    qt = {SWAP}(q) qf = Reshape(qt, queries)
    k4 = Reshape(ks, split) kt = {SWAP}(k4) kf = Reshape(kt, keys)
    v4 = Reshape(vs, split) vt = {SWAP}(v4) vf = Reshape(vt, keys)
    f, pk, pv = com.microsoft.GroupQueryAttention<num_heads=4, kv_num_heads=2, scale=0.25>(
        qf, kf, vf, , , lengths, length)
    h = Reshape(f, heads) y = {SWAP}(h)"""
SHAPES = """int64[1] two = {2}, int64[3] queries = {2, 3, 32}, int64[3] keys = {2, 3, 16},
    int64[4] split = {2, 2, 3, 8}, int64[4] heads = {2, 3, 4, 8}, int32[2] lengths = {2, 2},
    int32 length = {3}"""


@pytest.mark.parametrize(
    ("constants", "body"),
    [
        (CONSTANTS, MASKED),
        (f"{CONSTANTS}, float[3,3] bias = {{0, -inf, -inf, 0, 0, -inf, 0, 0, 0}}", BIASED),
        (f"{CONSTANTS}, float[3,3] bias = {{0, -3e38, -3e38, 0, 0, -3e38, 0, 0, 0}}", BIASED),
    ],
    ids=["of truth values", "of infinities", "of the smallest number"],
)
def test_groups(constants: str, body: str) -> None:
    """A mask in any form, as long as it is a constant."""
    assert_rewrites(
        GroupQueryAttention,
        f"({INPUTS}) => ({RESULT}) <{constants}> {{{body}}}",
        f"({INPUTS}) => ({RESULT}) <{SHAPES}> {{{FUSED}}}",
        reference=False,
    )


NOT_CAUSAL = "the mask is not known to be causal"


@pytest.mark.parametrize(
    ("inputs", "result", "constants", "body", "reason"),
    [
        (f"{INPUTS}, float[3,3] bias", RESULT, CONSTANTS, BIASED, NOT_CAUSAL),
        (INPUTS, RESULT, CONSTANTS.replace("1, 0, 0, 1, 1", "1, 0, 0, 0, 1"), MASKED, NOT_CAUSAL),
        (INPUTS, RESULT, CONSTANTS.replace("1, 0, 0, 1, 1", "1, 1, 0, 1, 1"), MASKED, NOT_CAUSAL),
        (INPUTS, RESULT, CONSTANTS.replace("{-inf}", "{-1.0}"),
         BIASED.replace("b = Add", "bias = Where(seen, zero, low) b = Add"), NOT_CAUSAL),
        (f"{INPUTS}, bool[1,1,3,3] seen", RESULT, CONSTANTS.partition(",\n    bool")[0], MASKED,
         NOT_CAUSAL),
        (INPUTS, f"{RESULT}, float[2,4,3,3] b", CONSTANTS, MASKED, "others read the scores"),
        (INPUTS.replace("float", "double"), RESULT.replace("float", "double"),
         CONSTANTS.replace("float", "double"),
         MASKED,
         "computed in another type than float32"),
        (INPUTS.replace(",8]", ",4]"), RESULT.replace(",8]", ",4]"),
         CONSTANTS.replace("3, 8}", "3, 4}"), MASKED,
         "a size of heads that the kernel does not take"),
        (INPUTS.replace("2,2,3,8", "2,4,3,8"), RESULT,
         CONSTANTS.replace("2, 1, 1}", "1, 1, 1}"), MASKED, "queries, keys and values do not fit"),
    ],
)  # fmt: skip
def test_what_it_refuses(inputs: str, result: str, constants: str, body: str, reason: str) -> None:
    """And why: then MultiHeadAttention reads repeated heads."""
    assert_refuses(
        GroupQueryAttention, f"({inputs}) => ({result}) <{constants}> {{{body}}}", reason
    )


def test_without_the_kernel_nothing_is_done() -> None:
    assert_refuses(
        GroupQueryAttention,
        f"({INPUTS}) => ({RESULT}) <{CONSTANTS}> {{{MASKED}}}",
        "no kernel for the type",
        kernels=False,
    )


ROTARY_INPUTS = """float[2,4,3,16] q, float[2,1,3,16] k, float[2,3,16] v, float[3,8] c,
    float[3,8] s"""
ROTARY_SHAPES = """int64[1] first = {0}, int64[3] queries = {2, 3, 64}, int64[3] keys = {2, 3, 16},
    int32[2] lengths = {2, 2}, int32 length = {3}"""
ROTATED = f"""
    qr = com.microsoft.RotaryEmbedding(q, first, c, s) qt = {SWAP}(qr) qf = Reshape(qt, queries)
    kr = com.microsoft.RotaryEmbedding(k, first, c, s) kf = Reshape(kr, keys)
    y, pk, pv = com.microsoft.GroupQueryAttention<num_heads=4, kv_num_heads=1, scale=0.25>(
        qf, kf, v, , , lengths, length)"""


def test_rotary_in_the_kernel() -> None:
    assert_rewrites(
        GroupQueryRotary,
        f"({ROTARY_INPUTS}) => (float[2,3,64] y) <{ROTARY_SHAPES}> {{{ROTATED}}}",
        f"""({ROTARY_INPUTS}) => (float[2,3,64] y) <{ROTARY_SHAPES}> {{
            qt = {SWAP}(q) qf = Reshape(qt, queries)
            kt = {SWAP}(k) kf = Reshape(kt, keys)
            y, pk, pv = com.microsoft.GroupQueryAttention
                <num_heads=4, kv_num_heads=1, scale=0.25, do_rotary=1>(
                qf, kf, v, , , lengths, length, c, s) }}""",
        reference=False,
    )


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("(k, first, c, s)", "(k, first, s, c)", "queries and keys have tables of their own"),
        ("first = {0}", "first = {1}", None),
        ("RotaryEmbedding(k", "RotaryEmbedding<interleaved=1>(k", None),
        ("=> (float[2,3,64] y)", "=> (float[2,3,64] y, float[2,1,3,16] kr)", None),
        (",16]", ",8]", "a size of heads that the kernel does not rotate"),
    ],
)
def test_what_is_not_rotated_in_the_kernel(old: str, new: str, reason: str | None) -> None:
    text = f"({ROTARY_INPUTS}) => (float[2,3,64] y) <{ROTARY_SHAPES}> {{{ROTATED}}}"
    if new == ",8]":
        text = text.replace("[3,8]", "[3,4]").replace("64", "32").replace("3, 16}", "3, 8}")
    text = text.replace(old, new)
    if "first = {1}" in new:  # a table with that position
        text = text.replace("[3,8]", "[4,8]")
    assert_refuses(GroupQueryRotary, text, reason)


@pytest.mark.parametrize(("heads", "groups"), [(2, 1), (4, 2), (2, 2)])
def test_inference_of_llama(heads: int, groups: int) -> None:
    """Without a mask of its own: one attention and no repeated heads; numbers are torch's."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    torch._dynamo.reset()
    config = LlamaConfig(
        hidden_size=16 * heads,
        num_attention_heads=heads,
        num_key_value_heads=groups,
        num_hidden_layers=2,
        vocab_size=32,
        intermediate_size=24,
        max_position_embeddings=16,
        attn_implementation="sdpa",
    )
    model = Named(LlamaForCausalLM(config).eval(), {"use_cache": False})
    inputs = {"input_ids": torch.randint(0, 32, (2, 7))}
    models: list[onnx.ModelProto] = []
    options = {
        "optimization": {"patterns": "default+onnxruntime"},
        "pre_ort_model_transforms": [lambda m: models.append(copy.deepcopy(m))],
    }
    compiled = torch.compile(model, backend=OrtBackend(options), dynamic=False, fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(**inputs), model(**inputs), atol=2e-5, rtol=2e-5)
    found = Counter(node.op_type for node in models[0].graph.node)
    # The one Where is in front of the embedding: an index below zero is an error there.
    fused = "MultiHeadAttention" if heads == groups else "GroupQueryAttention"
    assert (found[fused], found["Softmax"], found["Expand"], found["Where"]) == (2, 0, 0, 1)
    has_rotary = kernel_query()("RotaryEmbedding", "com.microsoft", 1, [1, 7, 1, 1])
    assert found["RotaryEmbedding"] == (4 if has_rotary and heads == groups else 0)
    assert has_kernel("GroupQueryAttention", "com.microsoft", 1, [1, 1, 1, None, None, 6, 6],
                      outputs=3, attributes={"num_heads": 2, "kv_num_heads": 1})  # fmt: skip
