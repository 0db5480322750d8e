"""Activations that onnxruntime has as one kernel."""

from __future__ import annotations

import pytest

from dort_rewriter.optimize.patterns.onnxruntime.layers import FastGelu, GeluErf
from dort_rewriter.optimize.patterns.standard.layers import Gelu
from tests.optimize.rewrites import assert_refuses, assert_rewrites

HEADER = """(float[2,N] x) => (float[2,N] y) <float half = {0.5}, float one = {1.0},
    float root = {0.70710677}, float square = {1.4142135}, float cube = {0.044715},
    float three = {3.0}, float slope = {0.7978846}>"""
ERF = [
    "h = Mul(x, half) a = Mul(x, root) e = Erf(a) g = Add(e, one) y = Mul(h, g)",
    "a = Div(x, square) e = Erf(a) g = Add(one, e) h = Mul(g, x) y = Mul(half, h)",
    "a = Mul(root, x) e = Erf(a) g = Add(e, one) h = Mul(g, half) y = Mul(x, h)",
]
TANH = [
    """h = Mul(x, half) p = Mul(x, x) q = Mul(p, x) r = Mul(q, cube) a = Add(x, r)
    s = Mul(a, slope) e = Tanh(s) g = Add(e, one) y = Mul(h, g)""",
    """h = Mul(half, x) q = Pow(x, three) r = Mul(cube, q) a = Add(r, x)
    s = Mul(slope, a) e = Tanh(s) g = Add(one, e) y = Mul(g, h)""",
]


@pytest.mark.parametrize("body", ERF)
def test_gelu_of_an_error_function(body: str) -> None:
    """In the orders exporters write it."""
    assert_rewrites(
        GeluErf,
        f"{HEADER} {{{body}}}",
        "(float[2,N] x) => (float[2,N] y) {y = com.microsoft.Gelu(x)}",
        reference=False,
    )
    assert_rewrites(
        Gelu,
        f"{HEADER} {{{body}}}",
        '(float[2,N] x) => (float[2,N] y) {y = Gelu<approximate="none">(x)}',
        opset=20,
    )


@pytest.mark.parametrize("body", TANH)
def test_gelu_of_a_tangent(body: str) -> None:
    """GPT-2's."""
    assert_rewrites(
        FastGelu,
        f"{HEADER} {{{body}}}",
        "(float[2,N] x) => (float[2,N] y) {y = com.microsoft.FastGelu(x)}",
        reference=False,
    )
    assert_rewrites(
        Gelu,
        f"{HEADER} {{{body}}}",
        '(float[2,N] x) => (float[2,N] y) {y = Gelu<approximate="tanh">(x)}',
        opset=20,
    )


def test_the_input_may_be_a_product() -> None:
    """It is not taken for a part of the formula."""
    assert_rewrites(
        GeluErf,
        f"{HEADER} {{z = Mul(x, half) {ERF[0].replace('Mul(x,', 'Mul(z,')}}}",
        """(float[2,N] x) => (float[2,N] y) <float half = {0.5}> {
            z = Mul(x, half)
            y = com.microsoft.Gelu(z)
        }""",
        reference=False,
    )


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (ERF[0].replace("x, root", "x, one"), None),
        (ERF[0].replace("e, one", "e, half"), None),
        (ERF[0].replace("Mul(x, half)", "Mul(x, root)"), None),
        (ERF[0].replace("y = Mul(h, g)", "t = Mul(h, g) y = Add(t, e)"),
         "others read what is inside"),
    ],
)  # fmt: skip
def test_what_is_no_gelu(body: str, reason: str | None) -> None:
    """Another slope, another shift, another factor, and a gate that others read."""
    assert_refuses(GeluErf, f"{HEADER} {{{body}}}", reason)


def test_what_follows_is_left_alone() -> None:
    """A product with the result is no part of it."""
    body = ERF[0].replace("y = Mul(h, g)", "t = Mul(h, g) y = Mul(t, x)")
    assert_rewrites(
        GeluErf,
        f"{HEADER} {{{body}}}",
        "(float[2,N] x) => (float[2,N] y) {t = com.microsoft.Gelu(x) y = Mul(t, x)}",
        reference=False,
    )


def test_another_cube_is_no_gelu() -> None:
    """The constant is part of the formula."""
    assert_refuses(FastGelu, f"{HEADER} {{{TANH[0].replace('q, cube', 'q, half')}}}")


def test_an_older_opset_has_no_gelu() -> None:
    """And a provider may have no kernel."""
    assert_refuses(Gelu, f"{HEADER} {{{ERF[0]}}}", "the opset has no Gelu")
    assert_refuses(
        Gelu, f"{HEADER} {{{ERF[0]}}}", "no kernel for the type", opset=20, kernels=False
    )
    assert_refuses(GeluErf, f"{HEADER} {{{ERF[0]}}}", "no kernel for the type", kernels=False)


def test_a_number_has_no_fast_gelu() -> None:
    """onnxruntime's kernel wants a dimension."""
    header = HEADER.replace("[2,N]", "")
    assert_refuses(FastGelu, f"{header} {{{TANH[0]}}}", "the kernel wants a dimension")


def test_float64_has_no_fast_gelu() -> None:
    """Eight digits of sixteen were right."""
    header = HEADER.replace("float", "double")
    assert_refuses(FastGelu, f"{header} {{{TANH[0]}}}", "the kernel has constants of float32")
