"""Nodes that return their input as it is."""

from __future__ import annotations

from dort_rewriter.optimize.patterns.standard.constants import Dropout, Identity
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


def test_dropout_vanishes_in_inference() -> None:
    """With a ratio, and without; the flag may be left out."""
    assert_rewrites(
        Dropout,
        """(float[N] x) => (float[N] y) <float ratio = {0.5}, bool training = {0}> {
            a = Dropout(x)
            b = Dropout(a, ratio, training)
            y = Neg(b)
        }""",
        "(float[N] x) => (float[N] y) {y = Neg(x)}",
        count=2,
    )


def test_dropout_in_training_is_kept() -> None:
    """It draws."""
    assert_refuses(
        Dropout,
        """(float[N] x) => (float[N] y) <float ratio = {0.5}, bool training = {1}> {
            y = Dropout(x, ratio, training)
        }""",
    )


def test_a_mask_that_is_read_needs_its_dropout() -> None:
    """It is all true, and has no other node."""
    assert_refuses(
        Dropout,
        """(float[N] x) => (float[N] y, bool[N] mask) {
            a, mask = Dropout(x)
            y = Neg(a)
        }""",
        "the mask is read",
    )
