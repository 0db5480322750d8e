"""Keys and values that several heads share are not copied for attention of one query."""

from __future__ import annotations

import numpy as np
import pytest

from dort_rewriter.optimize.patterns.standard.attention import SharedHeads
from tests.optimize.rewrites import assert_refuses, assert_rewrites

REPEATED = """
    {0}5 = Unsqueeze({0}, two) {0}e = Expand({0}5, many) {0}r = Reshape({0}e, whole{0})
"""
SCORES = "t = Transpose<perm = [0, 1, 3, 2]>({}) c = MatMul({}, t) e = Mul(c, s)"
KNOWN = "float s = {0.25}"
MADE = f"""<{KNOWN}, int64[1] two = {{2}}, int64[5] many = {{1, 1, 3, 1, 1}},
    int64[4] wholek = {{-1, 6, 9, 8}}, int64[4] wholev = {{-1, 6, 9, 4}}>"""


def graph(end: str, bias: str = "", rows: int = 1, more: str = "") -> str:
    head = given(bias, rows, more)
    repeated = f"{REPEATED.format('k')} {REPEATED.format('v')}"
    return f"{head} {MADE} {{ {repeated} {SCORES.format('kr', 'q')} {end} }}"


def given(bias: str = "", rows: int = 1, more: str = "") -> str:
    inputs = f"float[B,6,{rows},8] q, float[B,2,9,8] k, float[B,2,9,4] v{bias}"
    return f"({inputs}) => (float[B,6,{rows},4] y{more})"


def folded(middle: str, bias: str = "", known: str = "") -> str:
    """The graph that is to come out, its result ``z``."""
    sizes = "int64[4] a = {0, 2, 3, 8}, int64[4] b = {0, 6, 1, 4}"
    rows = f"r = Reshape(q, a) {SCORES.format('k', 'r')}"
    return f"{given(bias)} <{KNOWN}, {sizes}{known}> {{ {rows} {middle} y = Reshape(z, b) }}"


def test_queries_of_a_group_are_rows() -> None:
    assert_rewrites(
        SharedHeads,
        graph("p = Softmax<axis = -1>(e) y = MatMul(p, vr)"),
        folded("p = Softmax<axis = -1>(e) z = MatMul(p, v)"),
    )


@pytest.mark.parametrize("bias", ["[B,1,1,9]", "[1,1,1,9]", "[1,9]", "[9]"])
def test_with_a_bias(bias: str) -> None:
    bias = f", float{bias} m"
    assert_rewrites(
        SharedHeads,
        graph("a = Add(e, m) p = Softmax<axis = -1>(a) y = MatMul(p, vr)", bias),
        folded("g = Add(e, m) p = Softmax<axis = -1>(g) z = MatMul(p, v)", bias),
    )


def test_rows_without_any_key_are_zero() -> None:
    bias = ", float[B,1,1,9] m"
    masked = """{0} = Add(e, m) p = Softmax<axis = -1>({0}) h = ReduceMax<keepdims = 1>({0}, last)
        i = Equal(h, low) n = ReduceSum<keepdims = 1>({0}, last) j = Equal(n, low)
        w = And(i, j) o = Where(w, zero, p) {2} = MatMul(o, {1})"""
    known = ", float low = {-inf}, float zero = {0.0}, int64[1] last = {-1}"
    generator = np.random.default_rng(0)
    feeds = {
        name: generator.normal(size=(2, *shape)).astype("f")
        for name, shape in {"q": (6, 1, 8), "k": (2, 9, 8), "v": (2, 9, 4)}.items()
    }
    hidden = np.zeros((2, 1, 1, 9), np.float32)
    hidden[1] = -np.inf
    before = graph(masked.format("a", "vr", "y"), bias).replace("> {", f"{known}> {{", 1)
    after = folded(masked.format("g", "v", "z"), bias, known)
    with np.errstate(invalid="ignore"):  # ONNX's evaluator subtracts minus infinity from itself
        assert_rewrites(SharedHeads, before, after, inputs={**feeds, "m": hidden})


END = "p = Softmax<axis = -1>({}) y = MatMul(p, vr)"
REFUSED = {
    "more queries": (
        graph(END.format("e"), rows=4),
        "there is not one query for each head",
    ),
    "a bias for each head": (
        graph(f"a = Add(e, m) {END.format('a')}", ", float[B,6,1,9] m"),
        "the bias is not the same for all heads",
    ),
    "the scores are read": (
        graph(f"{END.format('e')} z = Neg(e)", more=", float[B,6,1,9] z"),
        "others read the scores",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_heads_that_are_repeated(case: str) -> None:
    assert_refuses(SharedHeads, *REFUSED[case])


def test_heads_that_are_not_repeated() -> None:
    heads = "(float[B,6,1,8] q, float[B,6,9,8] k, float[B,6,9,4] v) => (float[B,6,1,4] y)"
    end = END.format("e").replace("vr", "v")
    assert_refuses(SharedHeads, f"{heads} <{KNOWN}> {{ {SCORES.format('k', 'q')} {end} }}")
