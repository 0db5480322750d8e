"""Normalizations that onnxruntime has as one kernel."""

from __future__ import annotations

import pytest

from dort_rewriter.optimize.patterns.onnxruntime.norms import SimplifiedLayerNormalization
from tests.optimize.rewrites import assert_refuses, assert_rewrites

FLOAT = "<float e = {1e-6}, int64[1] last = {-1}>"
BODY = """
    s = Mul(x, x)
    m = ReduceMean<keepdims=1>(s, last)
    v = Add(m, e)
    d = Sqrt(v)
    r = Reciprocal(d)
    n = Mul(x, r)
"""


@pytest.mark.parametrize(
    "body",
    [
        f"{{{BODY} y = Mul(w, n)}}",
        f"{{{BODY.replace('Mul(x, r)', 'Mul(r, x)')} y = Mul(n, w)}}",
        f"{{{BODY.replace('Add(m, e)', 'Add(e, m)').replace('Mul(x, r)', 'Div(x, d)')}"
        " y = Mul(w, n)}",
    ],
)
def test_the_ways_to_write_it(body: str) -> None:
    """Factors and summands in either order, and a division by the root."""
    assert_rewrites(
        SimplifiedLayerNormalization,
        f"(float[2,N,8] x, float[8] w) => (float[2,N,8] y) {FLOAT} {body}",
        """(float[2,N,8] x, float[8] w) => (float[2,N,8] y) {
            y = SimplifiedLayerNormalization<axis=-1, epsilon=1e-6>(x, w)
        }""",
        reference=False,
    )


def test_what_the_backward_pass_needs_is_the_second_result() -> None:
    """A training graph returns the reciprocal deviation."""
    assert_rewrites(
        SimplifiedLayerNormalization,
        f"""(float[2,N,8] x, float[8] w) => (float[2,N,8] y, float[2,N,1] r) {FLOAT}
        {{{BODY} y = Mul(w, n)}}""",
        """(float[2,N,8] x, float[8] w) => (float[2,N,8] y, float[2,N,1] r) {
            y, r = SimplifiedLayerNormalization<axis=-1, epsilon=1e-6>(x, w)
        }""",
        reference=False,
    )


def test_a_normalized_input_that_is_returned_stays() -> None:
    """It is computed from the second result."""
    assert_rewrites(
        SimplifiedLayerNormalization,
        f"""(float[2,8] x, float[8] w) => (float[2,8] y, float[2,8] n) {FLOAT}
        {{{BODY} y = Mul(w, n)}}""",
        """(float[2,8] x, float[8] w) => (float[2,8] y, float[2,8] n) {
            y, r = SimplifiedLayerNormalization<axis=-1, epsilon=1e-6>(x, w)
            n = Mul(x, r)
        }""",
        reference=False,
    )


def test_half_is_computed_in_float() -> None:
    """As models write it: casts around the normalization, not around the weight."""
    assert_rewrites(
        SimplifiedLayerNormalization,
        f"""(float16[2,8] h, float16[8] w) => (float16[2,8] y) {FLOAT}
        {{x = Cast<to=1>(h) {BODY} c = Cast<to=10>(n) y = Mul(w, c)}}""",
        """(float16[2,8] h, float16[8] w) => (float16[2,8] y) {
            y = SimplifiedLayerNormalization<axis=-1, epsilon=1e-6>(h, w)
        }""",
        reference=False,
        rtol=2e-3,  # one rounding to half instead of two
        atol=2e-3,
    )


@pytest.mark.parametrize(
    ("header", "body", "reason"),
    [
        (
            f"(float[8,8] x, float[8] w) => (float[8,8] y) {FLOAT.replace('-1}', '0}')}",
            BODY,
            "another axis than the last",
        ),
        (
            "(float[2,8] x, float[8] w, float e) => (float[2,8] y) <int64[1] last = {-1}>",
            BODY,
            "epsilon is computed at run time",
        ),
        (
            f"(float[2,8] x, float[2,8] w) => (float[2,8] y) {FLOAT}",
            BODY,
            "the weight is no vector over the last axis",
        ),
        (f"(float[2,8] x, float[8] w) => (float[2,8] y) {FLOAT}", "n = Mul(x, x)", None),
    ],
)
def test_what_it_refuses(header: str, body: str, reason: str | None) -> None:
    """And why."""
    assert_refuses(SimplifiedLayerNormalization, f"{header} {{{body} y = Mul(w, n)}}", reason)


def test_a_provider_without_the_kernel() -> None:
    """Nothing is emitted that does not run."""
    assert_refuses(
        SimplifiedLayerNormalization,
        f"(float[2,8] x, float[8] w) => (float[2,8] y) {FLOAT} {{{BODY} y = Mul(w, n)}}",
        "no kernel for the type",
        kernels=False,
    )
