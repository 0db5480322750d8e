"""Norms that newer opsets have as one operator."""

from __future__ import annotations

import pytest

from dort_rewriter.optimize.patterns.standard.layers import RMSNormalization
from dort_rewriter.ort_module import max_opset
from tests.optimize.rewrites import assert_refuses, assert_rewrites

NORM = """<float e = {1e-6}, int64[1] last = {-1}> {
    s = Mul(x, x) m = ReduceMean<keepdims=1>(s, last) v = Add(m, e) d = Sqrt(v)
    r = Reciprocal(d) n = Mul(x, r) y = Mul(w, n)
}"""
HEADER = "(float[2,N,8] x, float[8] w) => (float[2,N,8] y)"

needs_opset_23 = pytest.mark.skipif(max_opset() < 23, reason="this onnxruntime has no opset 23")


@needs_opset_23
def test_rms_norm() -> None:
    """One node."""
    assert_rewrites(
        RMSNormalization,
        f"{HEADER} {NORM}",
        f"{HEADER} {{y = RMSNormalization<axis=-1, epsilon=1e-6>(x, w)}}",
        opset=23,
    )


def test_older_opsets_have_no_such_operator() -> None:
    assert_refuses(RMSNormalization, f"{HEADER} {NORM}")


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("float[2,N,8] y)", "float[2,N,8] y, float[2,N,1] r)", "others read the deviation"),
        ("float[8] w", "float[1,8] w", "the weight is no vector over the last axis"),
        ("{-1}", "{1}", "another axis than the last"),
        ("float", "double", "it would be computed in float32"),
    ],
)
def test_what_is_left_alone(old: str, new: str, reason: str) -> None:
    text = f"{HEADER} {NORM}".replace(old, new)
    assert_refuses(RMSNormalization, text, reason, opset=23)


def test_without_a_kernel() -> None:
    text = f"{HEADER} {NORM}"
    assert_refuses(RMSNormalization, text, "no kernel for the type", opset=23, kernels=False)
