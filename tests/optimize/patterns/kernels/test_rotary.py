"""Rotary embeddings: one kernel for seven nodes."""

from __future__ import annotations

import pytest

from dort_rewriter.optimize.patterns.kernels.attention import Rotary
from tests.optimize.rewrites import assert_refuses, assert_rewrites

CONSTANTS = "<int64[1] zero = {0}, int64[1] half = {4}, int64[1] end = {8}, int64[1] last = {3}>"
INPUTS = "({t}[B,2,S,8] x, {t}[1,1,S,8] cos, {t}[1,1,S,8] sin) => ({t}[B,2,S,8] y)"
FORWARD = """
    low = Slice(x, zero, half, last)
    high = Slice(x, half, end, last)
    minus = Neg(high)
    turned = Concat<axis = 3>(minus, low)
    a = Mul(x, cos)
    b = Mul(turned, sin)
    y = Add(a, b)
"""
GRADIENT = """
    u = Mul(sin, x)
    low = Slice(u, zero, half, last)
    high = Slice(u, half, end, last)
    minus = Neg(low)
    turned = Concat<axis = -1>(high, minus)
    b = Mul(cos, x)
    y = Add(turned, b)
"""
SPLIT = """
    low, high = Split<axis = 3, num_outputs = 2>(x)
    minus = Neg(high)
    turned = Concat<axis = 3>(minus, low)
    b = Mul(turned, sin)
    a = Mul(x, cos)
    y = Add(b, a)
"""


def _graph(nodes: str, dtype: str = "float") -> str:
    return f"{INPUTS.format(t=dtype)} {CONSTANTS} {{{nodes}}}"


@pytest.mark.parametrize("dtype", ["float", "double", "float16"])
@pytest.mark.parametrize(("nodes", "gradient"), [(FORWARD, 0), (GRADIENT, 1), (SPLIT, 0)])
def test_it_is_one_node(nodes: str, gradient: int, dtype: str) -> None:
    """Forward, backward, the halves taken by Slice or Split."""
    tolerance = 4e-3 if dtype == "float16" else 1e-6
    how = ", rounding = 10" if dtype == "float16" else ""
    assert_rewrites(
        Rotary,
        _graph(nodes, dtype),
        _graph(f"y = dort_rewriter.Rotary<gradient = {gradient}{how}>(x, cos, sin)", dtype),
        rtol=tolerance,
        atol=tolerance,
        reference=False,
    )


MIXED = {
    "read from a narrow type": (
        "float16 float float",
        """w = Cast<to = 1>(x)
        low, high = Split<axis = 3, num_outputs = 2>(x)
        minus = Neg(high)
        turned = Concat<axis = 3>(minus, low)
        t = Cast<to = 1>(turned)
        a = Mul(w, cos)
        b = Mul(t, sin)
        y = Add(a, b)""",
        "gradient = 0",
    ),
    "rounded to it": (
        "float float float16",
        """p = Mul(sin, x)
        u = Cast<to = 10>(p)
        low, high = Split<axis = 3, num_outputs = 2>(u)
        minus = Neg(low)
        turned = Concat<axis = 3>(high, minus)
        q = Mul(cos, x)
        b = Cast<to = 10>(q)
        y = Add(turned, b)""",
        "gradient = 1, rounding = 10",
    ),
}


@pytest.mark.parametrize("name", MIXED)
def test_of_several_types(name: str) -> None:
    """As autocast has them: angles and gradients of float32."""
    types, nodes, how = MIXED[name]
    x, other, y = types.split()
    header = INPUTS.replace("{t}[B,2,S,8] x", f"{x}[B,2,S,8] x").replace("({t}", f"({y}")
    header = header.format(t=other)
    assert_rewrites(
        Rotary,
        f"{header} {{{nodes}}}",
        f"{header} {{y = dort_rewriter.Rotary<{how}>(x, cos, sin)}}",
        rtol=2e-3,
        atol=2e-3,
        reference=False,
    )


OTHERS = {
    "halves of another size": ("half", "two"),
    "the other half is negative": ("high)\n", "low)\n"),
    "an equal sign": ("Neg(high)", "Abs(high)"),
    "the halves are not exchanged": ("(minus, low)", "(low, minus)"),
    "of something else": ("a = Mul(x, cos)", "a = Mul(sin, cos)"),
    "the product is read elsewhere": ("y = Add(a, b)", "c = Add(a, b) y = Mul(c, a)"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_rotation(name: str) -> None:
    """Not recognized, and not reported."""
    nodes = FORWARD.replace(*OTHERS[name])
    if "Neg(low)" in nodes:
        nodes = nodes.replace("(minus, low)", "(minus, high)")
    text = _graph(nodes).replace("int64[1] half", "int64[1] two = {2}, int64[1] half")
    assert_refuses(Rotary, text)


def test_angles_that_are_shared_by_all_numbers() -> None:
    """The kernel reads a row of cos for a row of x."""
    text = _graph(FORWARD).replace("[1,1,S,8] cos", "[1,1,S,1] cos")
    assert_refuses(Rotary, text, "cos and sin have another last size than x")


def test_angles_that_repeat_x() -> None:
    """The result is larger than x."""
    text = _graph(FORWARD).replace("[B,2,S,8] x", "[1,2,S,8] x")
    text = text.replace("[1,1,S,8] cos", "[B,1,S,8] cos")
    assert_refuses(Rotary, text, "the result has another shape than x")


def test_without_a_kernel_nothing_is_done() -> None:
    """It is said."""
    assert_refuses(Rotary, _graph(FORWARD), "no kernel", kernels=False)
