"""The gradient of a cross entropy."""

from __future__ import annotations

import numpy as np
import pytest

from dort_rewriter.optimize.patterns.kernels.reductions import CrossEntropyGrad
from tests.optimize.rewrites import assert_refuses, assert_rewrites

CONSTANTS = """<float zero = {0}, int64[2] all = {3,7}, float[3,7] p, float[3,7] d>"""
NODES = """
    d = Expand(zero, all)
    p = ScatterElements<axis = 1>(d, i, g)
    z = dort_rewriter.SoftmaxGrad<log = 1>(p, y)
"""
INPUTS = {
    "y": np.log(np.full((3, 7), 1 / 7, dtype=np.float32)),
    "i": np.array([[2], [-1], [6]]),
    "g": np.array([[0.5], [0], [3]], dtype=np.float32),
}


def _graph(nodes: str) -> str:
    header = "(float[3,7] y, int64[3,1] i, float[3,1] g) => (float[3,7] z)"
    return f"{header} {CONSTANTS} {{{nodes}}}"


FOUND = {
    "as exported": ("", ""),
    "the last axis by its end": ("axis = 1", "axis = -1"),
    "zeros of a shape": ("Expand(zero, all)", "ConstantOfShape(all)"),
}


@pytest.mark.parametrize("name", FOUND)
def test_it_is_one_node(name: str) -> None:
    """Rows that do not count, places counted from the end."""
    assert_rewrites(
        CrossEntropyGrad,
        _graph(NODES.replace(*FOUND[name])),
        _graph("n = Neg(g) z = dort_rewriter.CrossEntropyGrad(y, i, n)"),
        inputs=INPUTS,
        rtol=1e-6,
        atol=0,
        reference=False,
    )


OTHERS = {
    "another softmax": ("log = 1", "log = 0"),
    "no zeros": ("float zero = {0}", "float zero = {2}"),
    "no places": ("ScatterElements<axis = 1>(d, i, g)", "Neg(d)"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_such_gradient(name: str) -> None:
    """Not recognized, and not reported."""
    text = _graph(NODES)
    assert_refuses(CrossEntropyGrad, text.replace(*OTHERS[name]))


NEAR = {
    "the chosen places are of another axis, or read elsewhere": [
        ("axis = 1", "axis = 0"),
        ("axis = 1", 'axis = 1, reduction = "add"'),
    ],
    "the gradient is not one for each row": [("float[3,1] g", "float[3,7] g")],
    "more than one place is chosen in a row": [("int64[3,1] i", "int64[3,2] i")],
    "places are chosen in some rows only": [
        ("int64[3,1] i, float[3,1] g", "int64[2,1] i, float[2,1] g")
    ],
}


@pytest.mark.parametrize(
    ("reason", "change"), [(reason, c) for reason, changes in NEAR.items() for c in changes]
)
def test_near_misses(reason: str, change: tuple[str, str]) -> None:
    """They are reported."""
    assert_refuses(CrossEntropyGrad, _graph(NODES).replace(*change), reason)


def test_places_of_32_bits_or_without_a_kernel() -> None:
    """The kernel reads int64."""
    text = _graph(NODES)
    assert_refuses(CrossEntropyGrad, text.replace("int64[3,1] i", "int32[3,1] i"), "no kernel")
    assert_refuses(CrossEntropyGrad, text, "no kernel", kernels=False)
