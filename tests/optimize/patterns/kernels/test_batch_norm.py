"""Batch normalization, with the casts, the sum and the Relu around it."""

from __future__ import annotations

import pytest

from dort_rewriter.optimize.patterns.kernels.convolutions import Epilogue
from dort_rewriter.optimize.patterns.kernels.reductions import (
    BatchNormInference,
    ReluBatchNormGrad,
)
from tests.optimize.rewrites import assert_refuses, assert_rewrites

GIVEN = ", float[8] w, float[8] b, float[8] m, float[8] v"
CONSTANT = ", ".join(f"float[8] {name} = {{1, 2, 3, 4, 5, 6, 7, 8}}" for name in "wbmv")


def _graph(nodes: str, held: str = "", given: str = GIVEN) -> str:
    held = f"<{held}>" if held else ""
    return (
        f"(float[N,8,6,5] x, float[N,8,6,5] o, float[8,8,1,1] k{given}) => (float[N,8,6,5] z) "
        f"{held} {{ {nodes} }}"
    )


def _own(inputs: str, attributes: str = "") -> str:
    return f"dort_rewriter.BatchNormInference<epsilon = 0.5{attributes}>({inputs}, w, b, m, v"


NORM = "y = BatchNormalization<epsilon = 0.5>({}, w, b, m, v)"
ULP = 2.0**-7
"""Of bfloat16: sums that differ by rounding may be rounded to neighbours."""
ROUNDED = "c = Cast<to = 16>(y) z = Cast<to = 1>(c)"
AROUND = {
    "its result is rounded": ("", "x", ROUNDED),
    "it reads rounded numbers": ("c = Cast<to = 16>(x) a = Cast<to = 1>(c)", "a", "z = Neg(y)"),
    "a Relu is behind it": ("", "x", "z = Relu(y)"),
    "it is added to something": ("", "x", "z = Add(o, y)"),
    "it is that of a convolution": ("a = Conv(x, k)", "a", "z = Relu(y)"),
}


@pytest.mark.parametrize("case", AROUND)
def test_it_is_computed_with_what_is_around(case: str) -> None:
    before, x, after = AROUND[case]
    given = _graph(f"{before} {NORM.format(x)} {after}")
    wanted = _graph(f"{before} y = {_own(x)}) {after}")
    assert_rewrites(BatchNormInference, given, wanted, rtol=ULP, atol=ULP, reference=False)


def test_a_sum_then_a_relu() -> None:
    for before, after in (
        (f"y = {_own('x')}) z = Add(y, o)", f"z = {_own('x')}, o)"),
        (f"y = {_own('x')}, o) z = Relu(y)", f"z = {_own('x', ', relu = 1')}, o)"),
    ):
        given = _graph(before, "float[N,8,6,5] y")
        assert_rewrites(Epilogue, given, _graph(after), reference=False)


def test_a_sum_of_other_sizes_stays() -> None:
    given = _graph(
        f"y = {_own('p')}) z = Add(y, o)", "float[1,8,6,5] y", ", float[1,8,6,5] p" + GIVEN
    )
    assert_refuses(Epilogue, given, "what is added has another shape")


KEPT = {
    "a convolution takes it": [
        _graph(f"a = Conv(x, k) {NORM.format('a')} {ROUNDED}", CONSTANT, given=""),
        _graph(f"{NORM.format('x')} z = Relu(y)", CONSTANT, given=""),
    ],
    "onnxruntime is as fast": [_graph(f"{NORM.format('x')} z = Neg(y)")],
}


@pytest.mark.parametrize("reason", KEPT)
def test_what_stays(reason: str) -> None:
    for given in KEPT[reason]:
        assert_refuses(BatchNormInference, given, reason)


def test_where_there_is_no_kernel() -> None:
    given = _graph(f"{NORM.format('x')} {ROUNDED}")
    assert_refuses(BatchNormInference, given, "no kernel", kernels=False)


# -- in training --------------------------------------------------------------------------------

MADE = "(float[4,8,6,5] z, float[8] p, float[8] q, float[8] r)"
IN_TRAINING = {
    "a Relu is behind it": ("x, w, b", "", "z = Relu(y)", "x, w, b", ", relu = 1"),
    "it is added to something": ("x, w, b", "", "z = Add(o, y)", "x, w, b, o", ""),
    "a Relu is behind the sum": ("x, w, b, o", "", "z = Relu(y)", "x, w, b, o", ", relu = 1"),
}


def _in_training(nodes: str, dtype: str = "float", held: str = "") -> str:
    given = f"{dtype}[4,8,6,5] x, {dtype}[4,8,6,5] o, float[8] w, float[8] b"
    made = MADE.replace("float[4", f"{dtype}[4")
    return f"({given}) => {made} {held} {{ {nodes} }}"


def _batch_norm(y: str, read: str, how: str = "") -> str:
    return f"{y}, p, q, r = dort_rewriter.BatchNorm<epsilon = 0.5{how}>({read})"


@pytest.mark.parametrize("case", IN_TRAINING)
def test_what_follows_one_in_training(case: str) -> None:
    read, how, after, wanted, more = IN_TRAINING[case]
    given = _in_training(f"{_batch_norm('y', read, how)} {after}", held="<float[4,8,6,5] y>")
    assert_rewrites(
        Epilogue, given, _in_training(_batch_norm("z", wanted, how + more)), reference=False
    )


def test_a_sum_behind_rounded_numbers_stays() -> None:
    for nodes, reason in (
        (f"{_batch_norm('y', 'x, w, b')} z = Add(o, y)", "it is rounded in between"),
        (f"{_batch_norm('y', 'x, w, b')} c = Neg(y) d = Relu(y) z = Add(c, d)", None),
    ):
        given = _in_training(nodes, "float16", "<float16[4,8,6,5] y>")
        assert_refuses(Epilogue, given, reason)


GRADIENT = (
    "(float[4,8,6,5] g, float[4,8,6,5] x, float[8] w, float[8] m, float[8] v, "
    "float[4,8,6,5] y) => (float[8] a, float[8] b, float[4,8,6,5] z)"
)
ZERO = "float zero = {0}"


def _gradient(nodes: str, held: str = ZERO) -> str:
    return f"{GRADIENT} <{held}> {{ {nodes} }}"


def test_the_gradient_of_a_relu_behind_it() -> None:
    norm = "a, b, z = dort_rewriter.BatchNormGrad<training = 1>"
    given = f"c = LessOrEqual(y, zero) t = Where(c, zero, g) {norm}(t, x, w, m, v)"
    after = f"{GRADIENT} {{ {norm}(g, x, w, m, v, y) }}"
    assert_rewrites(ReluBatchNormGrad, _gradient(given), after, reference=False)


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        ("c = LessOrEqual(y, one) t = Where(c, zero, g) {}(t, x, w, m, v)", "it is no Relu"),
        ("c = LessOrEqual(y, zero) t = Where(c, one, g) {}(t, x, w, m, v)", "it is no Relu"),
        ("c = LessOrEqual(zero, y) t = Where(c, zero, g) {}(t, x, w, m, v)", "it is no Relu"),
        ("c = LessOrEqual(w, zero) d = Unsqueeze(c, ends) t = Where(d, zero, g) {}(t, x, w, m, v)",
         None),
        ("c = Less(y, zero) t = Where(c, zero, g) {}(t, x, w, m, v)", None),
        ("c = LessOrEqual(y, zero) t = Where(c, zero, g) {}(t, t, w, m, v)",
         "others read the gradient"),
        ("c = LessOrEqual(y, zero) t = Where(c, zero, g) {}(t, x, w, m, v, y)", None),
    ],
)  # fmt: skip
def test_gradients_that_stay(nodes: str, reason: str | None) -> None:
    held = f"{ZERO}, float one = {{1}}, int64[2] ends = {{1, 2}}"
    norm = "a, b, z = dort_rewriter.BatchNormGrad<training = 1>"
    assert_refuses(ReluBatchNormGrad, _gradient(nodes.format(norm), held), reason)
