"""Causal masks: matrices of two values, split by a diagonal."""

from __future__ import annotations

import numpy as np
import pytest

from dort_rewriter.optimize.patterns.kernels.tri_matrix import TriMatrix
from tests.optimize.rewrites import assert_refuses, assert_rewrites

CONSTANTS = (
    "<int64 zero = {{0}}, int64 one = {{1}}, int64 two = {{2}}, int64[1] last = {{1}}, "
    "{t} a = {{0}}, {t} b = {{3}}>"
)
RANGES = "r = Range(zero, n, one) c = Range(zero, m, one) q = Unsqueeze(r, last)"
BELOW = {
    "Less": ("a, b, b", "b, b, a"),
    "LessOrEqual": ("a, a, b", "b, a, a"),
    "Greater": ("b, b, a", "a, b, b"),
    "GreaterOrEqual": ("b, a, a", "a, a, b"),
    "Equal": ("b, a, b", "b, a, b"),
}


def _graph(nodes: str, dtype: str = "float") -> str:
    return f"(int64 n, int64 m) => ({dtype}[P,Q] z) {CONSTANTS.format(t=dtype)} {{{nodes}}}"


SIZES = {"n": np.array(5), "m": np.array(7)}


@pytest.mark.parametrize("columns_first", [True, False])
@pytest.mark.parametrize("comparison", BELOW)
def test_comparisons(comparison: str, columns_first: bool) -> None:
    """Of columns with rows, and of rows with columns."""
    order = "c, q" if columns_first else "q, c"
    values = BELOW[comparison][not columns_first]
    assert_rewrites(
        TriMatrix,
        _graph(f"{RANGES} e = {comparison}({order}) z = Where(e, a, b)"),
        _graph(f"z = dort_rewriter.TriMatrix<rank = 2, diagonal = 0>(n, m, {values})"),
        inputs=SIZES,
        rtol=0,
        atol=0,
        reference=False,
    )


@pytest.mark.parametrize("dtype", ["float", "double", "float16"])
@pytest.mark.parametrize("sizes", [(5, 7), (7, 5), (1, 9), (9, 1), (0, 4), (300, 200)])
@pytest.mark.parametrize(
    ("shifted", "diagonal"),
    [
        ("p = Add(q, two) e = LessOrEqual(c, p)", 2),
        ("p = Add(two, c) e = LessOrEqual(p, q)", -2),
        ("p = Add(q, one) d = Add(c, two) e = LessOrEqual(d, p)", -1),
    ],
)
def test_other_diagonals(shifted: str, diagonal: int, sizes: tuple[int, int], dtype: str) -> None:
    """Rows or columns that start elsewhere, and sizes of all kinds."""
    assert_rewrites(
        TriMatrix,
        _graph(f"{RANGES} {shifted} z = Where(e, a, b)", dtype),
        _graph(
            f"z = dort_rewriter.TriMatrix<rank = 2, diagonal = {diagonal}>(n, m, a, a, b)", dtype
        ),
        inputs={"n": np.array(sizes[0]), "m": np.array(sizes[1])},
        rtol=0,
        atol=0,
        reference=False,
    )


def test_a_mask_of_attention_has_four_axes() -> None:
    """As models broadcast it to heads."""
    text = """(int64 n) => (float[1,1,P,Q] z) <
        int64 zero = {{0}}, int64 one = {{1}}, float a = {{0}}, float b = {{-3}},
        int64[4] rows = {{1,1,-1,1}}, int64[4] columns = {{1,1,1,-1}}
    > {{ {} }}"""
    assert_rewrites(
        TriMatrix,
        text.format(
            "r = Range(zero, n, one) q = Reshape(r, rows) c = Reshape(r, columns) "
            "e = GreaterOrEqual(q, c) z = Where(e, a, b)"
        ),
        text.format("z = dort_rewriter.TriMatrix<rank = 4, diagonal = 0>(n, n, a, a, b)"),
        inputs={"n": np.array(6)},
        rtol=0,
        atol=0,
        reference=False,
    )


OTHERS = {
    "both are rows": ("e = Less(c, q)", "p = Unsqueeze(c, last) e = Less(p, q)"),
    "a range from one": ("c = Range(zero, m, one)", "c = Range(one, m, one)"),
    "steps of two": ("c = Range(zero, m, one)", "c = Range(zero, m, two)"),
    "a product": ("e = Less(c, q)", "p = Mul(q, two) e = Less(c, p)"),
    "no comparison": ("e = Less(c, q)", "f = Less(c, q) e = Not(f)"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_such_matrix(name: str) -> None:
    """Not recognized, and not reported."""
    nodes = f"{RANGES} e = Less(c, q) z = Where(e, a, b)".replace(*OTHERS[name])
    assert_refuses(TriMatrix, _graph(nodes))


def test_values_that_are_matrices() -> None:
    """Each place has its own."""
    text = _graph(f"{RANGES} e = Less(c, q) z = Where(e, x, b)")
    text = text.replace("(int64 n, int64 m)", "(int64 n, int64 m, float[P,Q] x)")
    assert_refuses(TriMatrix, text, "the values are no single numbers")


def test_a_result_of_more_axes() -> None:
    """What is chosen from repeats it."""
    text = _graph(f"{RANGES} e = Less(c, q) z = Where(e, x, b)")
    text = text.replace("(int64 n, int64 m)", "(int64 n, int64 m, float[3,1,1] x)")
    text = text.replace("[P,Q] z", "[3,P,Q] z")
    assert_refuses(TriMatrix, text, "the matrix has other axes than the comparison")


@pytest.mark.parametrize(("dtype", "kernels"), [("int64", True), ("float", False)])
def test_without_a_kernel_nothing_is_done(dtype: str, kernels: bool) -> None:
    """Integers, or no compiler."""
    text = _graph(f"{RANGES} e = Less(c, q) z = Where(e, a, b)", dtype)
    assert_refuses(TriMatrix, text, "no kernel", kernels=kernels)
