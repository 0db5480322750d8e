"""Rotary embedding as the operator of opset 23."""

from __future__ import annotations

import pytest

from dort_rewriter.optimize.patterns.standard.attention import RotaryEmbedding
from dort_rewriter.ort_module import max_opset
from tests.optimize.patterns.onnxruntime.test_rotary import BODY, CONSTANTS, HEADER
from tests.optimize.rewrites import assert_refuses, assert_rewrites

needs_opset = pytest.mark.skipif(max_opset() < 23, reason="this onnxruntime has no opset 23")
TABLES = """
    cf = Cos(angle) cs = Mul(cf, scale) cu = Unsqueeze(cs, one) ch = Reshape(cu, table)
    cos = Expand(ch, all)
    sf = Sin(angle) su = Unsqueeze(sf, one) sh = Reshape(su, table) sin = Expand(sh, all)
    y = RotaryEmbedding(x, cos, sin)"""
FUSED = "float scale = {0.5}, int64[1] one = {1}, int64[3] table = {1, -1, 4}"


@needs_opset
def test_a_rotary_embedding() -> None:
    """The tables are repeated for all batches."""
    header = HEADER.replace("[B,", "[3,")
    assert_rewrites(
        RotaryEmbedding,
        f"{header} {CONSTANTS} {{{BODY}}}",
        f"{header} <{FUSED}, int64[3] all = {{3, 1, 1}}> {{{TABLES}}}",
        opset=23,
    )


@needs_opset
def test_batches_of_unknown_number() -> None:
    """Their number is computed."""
    assert_rewrites(
        RotaryEmbedding,
        f"{HEADER} {CONSTANTS} {{{BODY}}}",
        f"""{HEADER} <{FUSED}, int64[2] ones = {{1, 1}}> {{
            batch = Shape<start=0, end=1>(x) all = Concat<axis=0>(batch, ones) {TABLES} }}""",
        opset=23,
    )


@needs_opset
def test_one_batch_needs_no_copies() -> None:
    header = HEADER.replace("[B,", "[1,")
    once = TABLES.replace("cos = Expand(ch, all)", "").replace("sin = Expand(sh, all)", "")
    assert_rewrites(
        RotaryEmbedding,
        f"{header} {CONSTANTS} {{{BODY}}}",
        f"{header} <{FUSED}> {{{once.replace('cos, sin', 'ch, sh')}}}",
        opset=23,
    )


@needs_opset
def test_what_it_refuses() -> None:
    """Another table, or no kernel."""
    text = f"{HEADER} {CONSTANTS} {{{BODY}}}"
    other = text.replace("[1,S,4]", "[1,1,4]")
    assert_refuses(RotaryEmbedding, other, "the table has other positions", opset=23)
    assert_refuses(RotaryEmbedding, text, "no kernel for the type", opset=23, kernels=False)


def test_an_older_opset_has_none() -> None:
    assert_refuses(RotaryEmbedding, f"{HEADER} {CONSTANTS} {{{BODY}}}")
