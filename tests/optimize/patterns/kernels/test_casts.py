"""Casts that kernels of ours do by themselves."""

from __future__ import annotations

import pytest

from dort_rewriter.optimize.patterns.kernels.casts import KernelCasts, NarrowNorms, NarrowSoftmax
from tests.optimize.rewrites import assert_refuses, assert_rewrites

ABSORBED = {
    "before and after": (
        "float16[4,70] x, float16[4,70] g => float16[4,70] z",
        "a = Cast<to = 1>(x) b = Cast<to = 1>(g) y = D.GeluGrad(b, a) z = Cast<to = 10>(y)",
        "z = D.GeluGrad(g, x)",
    ),
    "one of the inputs": (
        "float16[4,70] x, float[4,70] g => float[4,70] y",
        "a = Cast<to = 1>(x) y = D.GeluGrad(g, a)",
        "y = D.GeluGrad(g, x)",
    ),
    "some of the results": (
        "float16[4,70] x, float[70] w => float16[4,70] z, float[4,1] m, float[4,1] r",
        "a = Cast<to = 1>(x) y, m, r = D.LayerNorm<axes = 1, epsilon = 0.5>(a, w, w)"
        " z = Cast<to = 10>(y)",
        "z, m, r = D.LayerNorm<axes = 1, epsilon = 0.5>(x, w, w)",
    ),
    "a cast that others read": (
        "float16[4,70] x => float[4,70] a, float[4,1] y",
        "a = Cast<to = 1>(x) y = D.Sum<trailing = 1>(a)",
        "a = Cast<to = 1>(x) y = D.Sum<trailing = 1>(x)",
    ),
    "a loss": (
        "float[4,70] x, int64[4,1] i, float[4,1] g => float16[4,70] z",
        "y = D.CrossEntropyGrad(x, i, g) z = Cast<to = 10>(y)",
        "z = D.CrossEntropyGrad(x, i, g)",
    ),
}


def _text(signature: str, nodes: str) -> str:
    given, made = signature.split(" => ")
    values = "<float[4,70] y>" if "(y)" in nodes and " y" not in made else ""
    return f"({given}) => ({made}) {values} {{{nodes.replace('D.', 'dort_rewriter.')}}}"


@pytest.mark.parametrize("name", ABSORBED)
def test_a_kernel_reads_and_writes_16_bits(name: str) -> None:
    """Bit for bit."""
    signature, before, after = ABSORBED[name]
    assert_rewrites(
        KernelCasts,
        _text(signature, before),
        _text(signature, after),
        reference=False,
        rtol=0,
        atol=0,
    )


KEPT = {
    "a cast that rounds": "(double[4,70] x) => (float[4,1] y) { a = Cast<to = 1>(x) "
    "y = dort_rewriter.Sum<trailing = 1>(a) }",
    "a result that others read": "(float[4,70] x) => (float[4,70] y, float16[4,70] z) "
    "{ y = dort_rewriter.Softmax(x) z = Cast<to = 10>(y) }",
    "a cast to a wider type": "(float[4,70] x) => (double[4,70] z) <float[4,70] y> "
    "{ y = dort_rewriter.Softmax(x) z = Cast<to = 11>(y) }",
}


@pytest.mark.parametrize("name", KEPT)
def test_casts_that_stay(name: str) -> None:
    """They are not the kernel's, and not reported."""
    assert_refuses(KernelCasts, KEPT[name])


NORMS = {
    "LayerNormalization": (
        "a = Cast<to = 1>(x) y = LayerNormalization<axis = -2, epsilon = 0.5>(a, w, w)",
        "a = Cast<to = 1>(x) y, m, r = dort_rewriter.LayerNorm<axes = 2, epsilon = 0.5>(a, w, w)",
        "5,70",
    ),
    "SimplifiedLayerNormalization": (
        "a = Cast<to = 1>(x) y = SimplifiedLayerNormalization<epsilon = 0.5>(a, w)",
        "a = Cast<to = 1>(x) y = dort_rewriter.RmsNorm<epsilon = 0.5>(a, w)",
        "70",
    ),
}


@pytest.mark.parametrize("name", NORMS)
def test_norms_of_16_bits(name: str) -> None:
    """Ours reads them: onnxruntime's is of float32."""
    before, after, width = NORMS[name]
    header = f"(float16[3,5,70] x, float[{width}] w) => (float[3,5,70] y)"
    header += " <float[3,1,1] m, float[3,1,1] r>" if "LayerNorm<" in after else ""
    assert_rewrites(
        NarrowNorms,
        f"{header} {{{before}}}",
        f"{header} {{{after}}}",
        reference=False,
        rtol=1e-5,
        atol=1e-5,
    )


def test_other_norms() -> None:
    """Of float32, and without a bias."""
    norm = "y = LayerNormalization<epsilon = 0.5>({})"
    text = "({}[3,70] x, float[70] w) => (float[3,70] y) {{{}}}"
    assert_refuses(NarrowNorms, text.format("float", norm.format("x, w, w")))
    without = "a = Cast<to = 1>(x) " + norm.format("a, w")
    reason = "a norm without a weight or a bias, or of several axes"
    assert_refuses(NarrowNorms, text.format("float16", without), reason)
    whole = "a = Cast<to = 1>(x) " + norm.format("a, w, w")
    assert_refuses(NarrowNorms, text.format("float16", whole), "no kernel", kernels=False)


@pytest.mark.parametrize(("operator", "log"), [("Softmax", 0), ("LogSoftmax", 1)])
def test_a_softmax_of_16_bits(operator: str, log: int) -> None:
    """Its own, and of numbers that are cast afterwards."""
    text = "({}[3,70] x) => (float16[3,70] z) <float[3,70] y> {{{}}}"
    rest = "z = Cast<to = 10>(y)"
    assert_rewrites(
        NarrowSoftmax,
        text.format("float", f"y = {operator}<axis = 1>(x) {rest}"),
        text.format("float", f"y = dort_rewriter.Softmax<log = {log}>(x) {rest}"),
        reference=False,
        rtol=1e-3,
        atol=1e-3,
    )
    assert_rewrites(
        NarrowSoftmax,
        text.format("float16", f"z = {operator}(x)"),
        text.format("float16", f"z = dort_rewriter.Softmax<log = {log}>(x)"),
        reference=False,
        rtol=1e-3,
        atol=1e-3,
    )


def test_other_softmaxes() -> None:
    """Of float32, of another axis, and where there is no kernel."""
    text = "({0}[3,70] x) => ({0}[3,70] y) {{y = Softmax{1}(x)}}"
    assert_refuses(NarrowSoftmax, text.format("float", ""))
    assert_refuses(NarrowSoftmax, text.format("float16", "<axis = 0>"), "not along the last axis")
    assert_refuses(NarrowSoftmax, text.format("float16", ""), "no kernel", kernels=False)
