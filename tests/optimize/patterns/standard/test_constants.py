"""Nodes whose result is known before the model runs."""

from __future__ import annotations

import pytest

from dort_rewriter import optimize_onnx
from dort_rewriter.optimize.patterns.standard.constants import ConstantFolding, Dropout, Identity
from dort_rewriter.options import OptimizationOptions
from dort_rewriter.runtime.model_files import to_proto
from tests.optimize.rewrites import assert_refuses, assert_rewrites, model_of


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


def test_positions_are_computed() -> None:
    """And what is compared to them."""
    assert_rewrites(
        ConstantFolding,
        """(bool[3,3] x) => (bool[3,3] y)
        <int64 zero = {0}, int64 one = {1}, int64 n = {3}, int64[1] axis = {1}> {
            i = Range(zero, n, one)
            j = Unsqueeze(i, axis)
            m = LessOrEqual(i, j)
            y = And(x, m)
        }""",
        """(bool[3,3] x) => (bool[3,3] y) <bool[3,3] m = {1, 0, 0, 1, 1, 0, 1, 1, 1}> {
            y = And(x, m)
        }""",
        count=3,
    )


@pytest.mark.parametrize(
    ("node", "result"),
    [
        ("CumSum(a, zero)", "int64[3] c = {2, 1, 4}"),
        ("Where(b, a, k)", "int64[3] c = {2, 7, 3}"),
        ("Sub(a, k)", "int64[3] c = {-5, -8, -4}"),
        ("Expand(k, s)", "int64[3] c = {7, 7, 7}"),
        ("GatherND(a, g)", "int64[3] c = {3, 3, 2}"),
        ("Transpose(a)", "int64[3] c = {2, -1, 3}"),
        ("Cast<to=7>(b)", "int64[3] c = {1, 0, 1}"),
    ],
)
def test_integers_are_computed(node: str, result: str) -> None:
    """Each operator has one right answer."""
    assert_rewrites(
        ConstantFolding,
        f"""(int64[3] x) => (int64[3] y)
        <int64[3] a = {{2, -1, 3}}, int64 k = {{7}}, bool[3] b = {{1, 0, 1}}, int64 zero = {{0}},
         int64[1] s = {{3}}, int64[3,1] g = {{2, 2, 0}}> {{
            c = {node}
            y = Add(c, x)
        }}""",
        f"(int64[3] x) => (int64[3] y) <{result}> {{y = Add(c, x)}}",
    )


def test_what_is_large_is_computed_at_run_time() -> None:
    """A model does not grow for a node less."""
    assert_refuses(
        ConstantFolding,
        """(int64[2000] x) => (int64[2000] y) <int64 zero = {0}, int64 one = {1},
        int64 n = {2000}> {
            i = Range(zero, n, one)
            y = Add(i, x)
        }""",
        "too large, or of an unknown size",
    )


def test_single_numbers_are_computed() -> None:
    """As they are derived from an epsilon or a scale; what is rounded twice is not."""
    assert_rewrites(
        ConstantFolding,
        """(float[3] x) => (float[3] y) <double two = {2.0}, double half = {0.5}> {
            d = Div(two, half) r = Sqrt(d) c = Cast<to=1>(r) y = Mul(x, c) }""",
        "(float[3] x) => (float[3] y) <float c = {2.0}> { y = Mul(x, c) }",
        count=3,
    )
    assert_refuses(
        ConstantFolding,
        "(float[3] x) => (float[3] y) <float a = {2.0}> { e = Exp(a) y = Mul(x, e) }",
    )


SUM = """(float[2] x) => (float[2] y) <float[2] a = {0.1, 3}, float[2] b = {2, 0.2}> {
    c = Add(a, b)
    y = Mul(c, x)
}"""


def test_numbers_with_fractions_are_left_alone() -> None:
    """Unless the caller asks."""
    assert_refuses(ConstantFolding, SUM)


def test_the_caller_asks_for_more() -> None:
    """By an option."""
    model = to_proto(model_of(SUM))
    folded = optimize_onnx(model, OptimizationOptions(patterns=None, constant_folding=True))
    assert [n.op_type for n in folded.graph.node] == ["Mul"]
    plain = optimize_onnx(model, OptimizationOptions(constant_folding=False))
    assert [n.op_type for n in plain.graph.node] == ["Add", "Mul"]
