"""The gradient of an RMS norm."""

from __future__ import annotations

import pytest

from dort_rewriter.optimize.patterns.kernels.reductions import RmsNormGrad
from tests.optimize.rewrites import assert_refuses, assert_rewrites

NODES = """
    h = Mul(g, w)
    p = Mul(h, x)
    s = ReduceSum<keepdims = 1>(p, last)
    straight = Mul(h, r)
    square = Mul(r, r)
    cube = Mul(r, square)
    t = Mul(s, c)
    v = Mul(t, cube)
    curve = Mul(v, x)
"""
PLAIN = "y = Add(straight, curve)"
RESIDUAL = "b = Add(a, straight) y = Add(b, curve)"


def _graph(nodes: str, residual: bool = False) -> str:
    more = ", float[2,N,8] a" if residual else ""
    return f"""(float[2,N,8] g, float[2,N,8] x, float[2,N,1] r, float[8] w{more}) =>
        (float[2,N,8] y) <int64[1] last = {{2}}, float c = {{-0.125}}> {{{nodes}}}"""


FOUND = {
    "as exported": ("", ""),
    "factors in the other order": ("Mul(h, x)", "Mul(x, h)"),
    "the cube in the other order": ("Mul(r, square)", "Mul(square, r)"),
    "the weight first": ("Mul(g, w)", "Mul(w, g)"),
    "the constant after the cube": (
        "t = Mul(s, c)\n    v = Mul(t, cube)",
        "t = Mul(s, cube) v = Mul(c, t)",
    ),
    "the axis by its end": ("last = {2}", "last = {-1}"),
}
CALL = "dort_rewriter.RmsNormGrad(g, x, r, w)"


@pytest.mark.parametrize("name", FOUND)
def test_it_is_one_node(name: str) -> None:
    """Where nothing else is added."""
    assert_rewrites(
        RmsNormGrad,
        _graph(NODES + PLAIN).replace(*FOUND[name]),
        _graph(f"y = {CALL}"),
        reference=False,
    )


@pytest.mark.parametrize(
    "ends",
    [
        RESIDUAL,
        "b = Add(straight, a) y = Add(curve, b)",
        "b = Add(a, curve) y = Add(b, straight)",
    ],
)
def test_a_gradient_that_comes_from_elsewhere(ends: str) -> None:
    """It is added to one of the parts before the other is."""
    assert_rewrites(
        RmsNormGrad,
        _graph(NODES + ends, residual=True),
        _graph(f"n = {CALL} y = Add(a, n)", residual=True),
        reference=False,
    )


OTHERS = {
    "no cube": ("cube = Mul(r, square)", "cube = Mul(square, square)"),
    "another tensor": ("curve = Mul(v, x)", "curve = Mul(v, g)"),
    "no constant": ("t = Mul(s, c)", "t = Neg(s)"),
    "another root": ("straight = Mul(h, r)", "straight = Mul(h, w)"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_such_gradient(name: str) -> None:
    """Not recognized, and not reported."""
    assert_refuses(RmsNormGrad, _graph(NODES + PLAIN).replace(*OTHERS[name]))


NEAR = {
    "the factor is not minus one by the number of elements": ("c = {-0.125}", "c = {-0.25}"),
    "the sum is not along the last axis": ("last = {2}", "last = {1}"),
    "the two parts are not added": (PLAIN, "y = Sub(straight, curve)"),
    "there is no weight": ("h = Mul(g, w)", "h = Add(g, w)"),
    "there is not one root for each row": ("float[2,N,1] r", "float[1,1,1] r"),
    "no kernel": ("float", "double"),
}


@pytest.mark.parametrize("reason", NEAR)
def test_near_misses(reason: str) -> None:
    """They are reported."""
    assert_refuses(RmsNormGrad, _graph(NODES + PLAIN).replace(*NEAR[reason]), reason)


def test_without_a_kernel_nothing_is_done() -> None:
    """No compiler, or another provider."""
    assert_refuses(RmsNormGrad, _graph(NODES + PLAIN), "no kernel", kernels=False)
