"""Operands that change nothing, and operators that undo themselves."""

from __future__ import annotations

import numpy as np
import pytest

from dort_rewriter.optimize.patterns.standard.arithmetic import (
    AddNeg,
    NeutralElement,
    NotNot,
    NotWhere,
    WhereConstant,
)
from tests.optimize.rewrites import assert_refuses, assert_rewrites

SPECIAL = {"x": np.array([np.nan, np.inf, -np.inf, 0.0], dtype=np.float32)}


@pytest.mark.parametrize(("operator", "number"), [("Add", 0), ("Sub", 0), ("Mul", 1), ("Div", 1)])
def test_a_number_that_changes_nothing(operator: str, number: int) -> None:
    """For NaN and infinities too."""
    assert_rewrites(
        NeutralElement,
        f"""(float[4] x) => (float[4] y) <float c = {{{number}}}> {{
            a = {operator}(x, c)
            y = Abs(a)
        }}""",
        "(float[4] x) => (float[4] y) {y = Abs(x)}",
        inputs=SPECIAL,
    )


@pytest.mark.parametrize(("operator", "number"), [("And", 1), ("Or", 0), ("Xor", 0)])
def test_a_truth_value_that_changes_nothing(operator: str, number: int) -> None:
    """On the left."""
    assert_rewrites(
        NeutralElement,
        f"""(bool[N] x) => (bool[N] y) <bool c = {{{number}}}> {{
            a = {operator}(c, x)
            y = Not(a)
        }}""",
        "(bool[N] x) => (bool[N] y) {y = Not(x)}",
    )


@pytest.mark.parametrize("node", ["Sub(c, x)", "Mul(x, c)", "Add(x, d)"])
def test_a_number_that_changes_something(node: str) -> None:
    """0 - x; 0 x, which is NaN for NaN; a constant that is not all zero."""
    assert_refuses(
        NeutralElement,
        f"(float[2] x) => (float[2] y) <float c = {{0}}, float[2] d = {{0, 1}}> {{y = {node}}}",
    )


def test_a_constant_that_broadcasts() -> None:
    """It makes the result larger."""
    assert_refuses(
        NeutralElement,
        "(float[1] x) => (float[2] y) <float[2] c = {0, 0}> {y = Add(x, c)}",
        "the constant makes the result larger",
    )


def test_a_symbol_may_be_one() -> None:
    """N and M may be different: the result is no longer as large as x then."""
    assert_refuses(
        NeutralElement,
        """(float[N] x, float[M] z) => (float[K] y) <float[2] c = {0, 0}> {
            y = Add(x, c)
        }""",
        "the constant makes the result larger",
    )


def test_twice_not_is_nothing() -> None:
    """Negative numbers likewise."""
    assert_rewrites(
        NotNot,
        """(bool[N] x, float[N] z) => (bool[N] y, float[N] w) {
            a = Not(x)
            b = Not(a)
            y = And(b, x)
            c = Neg(z)
            d = Neg(c)
            w = Exp(d)
        }""",
        "(bool[N] x, float[N] z) => (bool[N] y, float[N] w) {y = And(x, x) w = Exp(z)}",
        count=2,
    )


def test_not_of_something_else_is_kept() -> None:
    """Neg is not Not."""
    assert_refuses(NotNot, "(float[N] x) => (float[N] y) {a = Abs(x) y = Neg(a)}")


def test_a_negated_condition_swaps_the_branches() -> None:
    """In each Where that reads it."""
    assert_rewrites(
        NotWhere,
        """(bool[N] c, float[N] a, float[N] b) => (float[N] y, float[N] z) {
            n = Not(c)
            y = Where(n, a, b)
            z = Where(n, b, a)
        }""",
        """(bool[N] c, float[N] a, float[N] b) => (float[N] y, float[N] z) {
            y = Where(c, b, a)
            z = Where(c, a, b)
        }""",
        count=2,
    )


def test_a_negation_that_is_needed_stays() -> None:
    """Nothing would be won."""
    assert_refuses(
        NotWhere,
        """(bool[N] c, float[N] a, float[N] b) => (float[N] y, bool[N] n) {
            n = Not(c)
            y = Where(n, a, b)
        }""",
        "the negation is needed anyway",
    )


@pytest.mark.parametrize(("number", "chosen"), [(1, "a"), (0, "b")])
def test_a_constant_condition_chooses(number: int, chosen: str) -> None:
    """One branch is left."""
    assert_rewrites(
        WhereConstant,
        f"""(float[N] a, float[N] b) => (float[N] y) <bool[1] c = {{{number}}}> {{
            w = Where(c, a, b)
            y = Exp(w)
        }}""",
        f"(float[N] a, float[N] b) => (float[N] y) {{y = Exp({chosen})}}",
    )


def test_a_chosen_branch_that_broadcasts() -> None:
    """The other branch gives the result its size."""
    assert_refuses(
        WhereConstant,
        "(float[1] a, float[2] b) => (float[2] y) <bool[1] c = {1}> {y = Where(c, a, b)}",
        "the result is larger than what is chosen",
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [("Add(x, n)", "Sub(x, z)"), ("Add(n, x)", "Sub(x, z)"), ("Sub(x, n)", "Add(x, z)")],
)
def test_a_negative_operand(before: str, after: str) -> None:
    """The sign belongs to the operator."""
    assert_rewrites(
        AddNeg,
        f"(float[N] x, float[N] z) => (float[N] y) {{n = Neg(z) y = {before}}}",
        f"(float[N] x, float[N] z) => (float[N] y) {{y = {after}}}",
    )


def test_a_negative_that_is_needed() -> None:
    """Nothing would be won."""
    assert_refuses(
        AddNeg,
        "(float[N] x, float[N] z) => (float[N] y, float[N] n) {n = Neg(z) y = Add(x, n)}",
        "others read what is inside",
    )
