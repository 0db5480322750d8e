"""Nodes that return their input as it is."""

from __future__ import annotations

from dort_rewriter.optimize.patterns.default.identities import Identity
from tests.optimize.rewrites import assert_refuses, assert_rewrites


def test_identity_vanishes() -> None:
    """Before a reader, and in front of an output."""
    assert_rewrites(
        Identity,
        """(float[N] x) => (float[N] y) {
            a = Identity(x)
            b = Neg(a)
            y = Identity(b)
        }""",
        "(float[N] x) => (float[N] y) {y = Neg(x)}",
        count=2,
    )


def test_an_input_that_is_returned_keeps_its_identity() -> None:
    """ONNX has no way to return an input under another name."""
    assert_refuses(
        Identity,
        "(float[N] x) => (float[N] y) {y = Identity(x)}",
        "an output of the model has to have its own node",
    )
