"""Batch normalization in inference, as factors of what is elementwise around it."""

from __future__ import annotations

import pytest

from dort_rewriter.optimize.patterns.kernels.reductions import BatchNormProduct
from tests.optimize.rewrites import assert_refuses, assert_rewrites

SIZES = "2,8,64,64"


GIVEN = ", float[8] w, float[8] b, float[8] m, float[8] v"
CONSTANT = ", ".join(f"float[8] {name} = {{1, 2, 3, 4, 5, 6, 7, 8}}" for name in "wbmv")


def _graph(nodes: str, sizes: str = SIZES, held: str = "", given: str = GIVEN) -> str:
    held = f"<{held}>" if held else ""
    return (
        f"(float[{sizes}] x, float[8,8,1,1] k{given}) => (float[{sizes}] z) {held} {{ {nodes} }}"
    )


NORM = "y = BatchNormalization<epsilon = 0.5>({x}, w, b, m, v)"
PRODUCT = (
    "s = Add(v, half) d = Sqrt(s) r = Reciprocal(d) f = Mul(w, r) n = Mul(m, f) o = Sub(b, n)"
    " {columns} p = Mul({x}, {f}) y = Add(p, {o})"
)
COLUMNS = "g = Reshape(f, to) h = Reshape(o, to)"
HALF = "float half = {0.5}"
HELD = f"{HALF}, int64[3] to = {{8, 1, 1}}"


def _product(x: str) -> str:
    return PRODUCT.format(x=x, columns=COLUMNS, f="g", o="h")


ULP = 2.0**-7
"""Of bfloat16: sums that differ by rounding may be rounded to neighbours."""
ROUNDED = "c = Cast<to = 16>(y) z = Cast<to = 1>(c)"


@pytest.mark.parametrize(
    ("before", "after", "x"),
    [("", ROUNDED, "x"), ("c = Cast<to = 16>(x) a = Cast<to = 1>(c)", "z = Relu(y)", "a")],
    ids=["its result is rounded", "it reads rounded numbers"],
)
def test_it_is_a_product_and_a_sum(before: str, after: str, x: str) -> None:
    given = _graph(f"{before} {NORM.format(x=x)} {after}")
    wanted = _graph(f"{before} {_product(x)} {after}", held=HELD)
    assert_rewrites(BatchNormProduct, given, wanted, rtol=ULP, atol=ULP)


def test_rows_need_no_columns() -> None:
    """Two axes: the factors are along the last one."""
    product = PRODUCT.format(x="x", columns="", f="f", o="o")
    given = _graph(f"{NORM.format(x='x')} {ROUNDED}", "8192,8")
    wanted = _graph(f"{product} {ROUNDED}", "8192,8", HALF)
    assert_rewrites(BatchNormProduct, given, wanted, rtol=ULP, atol=ULP)


def test_behind_a_convolution_with_weights_that_change() -> None:
    given = _graph(f"a = Conv(x, k) {NORM.format(x='a')} {ROUNDED}")
    wanted = _graph(f"a = Conv(x, k) {_product('a')} {ROUNDED}", held=HELD)
    assert_rewrites(BatchNormProduct, given, wanted, rtol=ULP, atol=ULP)


KEPT = {
    "a convolution takes it": _graph(
        f"a = Conv(x, k) {NORM.format(x='a')} {ROUNDED}", held=CONSTANT, given=""
    ),
    "no 16-bit numbers are around it": _graph(f"{NORM.format(x='x')} z = Relu(y)"),
    "it is small, or of unknown sizes": _graph(f"{NORM.format(x='x')} {ROUNDED}", "N,8,64,64"),
}


@pytest.mark.parametrize("reason", KEPT)
def test_what_stays(reason: str) -> None:
    assert_refuses(BatchNormProduct, KEPT[reason], reason)


def test_where_there_is_no_kernel() -> None:
    given = _graph(f"{NORM.format(x='x')} {ROUNDED}")
    assert_refuses(BatchNormProduct, given, "no kernel", kernels=False)
