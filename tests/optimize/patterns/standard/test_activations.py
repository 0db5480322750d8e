"""Activations that newer opsets have as one operator."""

from __future__ import annotations

import pytest

from dort_rewriter.optimize.patterns.standard.layers import SwiGLU, Swish
from dort_rewriter.ort_module import max_opset
from tests.optimize.rewrites import assert_refuses, assert_rewrites

HEADER = "(float[2,N] x) => (float[2,N] y)"
SWISH = "<float a = {1.702}> { z = Mul(x, a) g = Sigmoid(z) y = Mul(g, x) }"
GATED = "(float[2,N] x, float[2,N] b) => (float[2,N] y)"


@pytest.mark.skipif(max_opset() < 24, reason="this onnxruntime has no opset 24")
def test_swish() -> None:
    after = f"{HEADER} {{ y = Swish<alpha = 1.702>(x) }}"
    assert_rewrites(Swish, f"{HEADER} {SWISH}", after, opset=24)


def test_older_opsets_have_no_swish() -> None:
    assert_refuses(Swish, f"{HEADER} {SWISH}", opset=23)


def test_others_read_the_gate() -> None:
    header = "(float[2,N] x) => (float[2,N] y, float[2,N] g)"
    assert_refuses(Swish, f"{header} {SWISH}", "others read the gate", opset=24)


def test_swiglu_of_other_shapes() -> None:
    header = "(float[2,N] x, float[N] b) => (float[2,N] y)"
    text = f"{header} {{ s = Swish(x) y = Mul(s, b) }}"
    assert_refuses(SwiGLU, text, "the inputs differ in shape", opset=28)


def test_swiglu_without_a_kernel() -> None:
    text = f"{GATED} {{ s = Swish(x) y = Mul(s, b) }}"
    assert_refuses(SwiGLU, text, "no kernel for the type", opset=28, kernels=False)
