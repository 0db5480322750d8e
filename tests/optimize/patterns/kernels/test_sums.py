"""Sums over the first or last axes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from dort_rewriter.optimize.patterns.kernels.reductions import Sums
from tests.optimize.rewrites import apply, assert_refuses, assert_rewrites, model_of

SHAPES: dict[str, tuple[str, str, str, int, int]] = {
    "rows": ("4,N,70", "[1] {2}", "4,N,1", 0, 1),
    "last two": ("4,N,70", "[2] {2,1}", "4,1,1", 0, 2),
    "columns": ("300,70", "[1] {0}", "1,70", 1, 0),
    "first two": ("4,N,70", "[2] {0,1}", "1,1,70", 2, 0),
    "both ends": ("4,N,6,7", "[3] {0,2,-1}", "1,N,1,1", 1, 2),
    "all": ("4,N,70", "[3] {0,1,2}", "1,1,1", 3, 0),
}


def _flags(operator: str) -> str:
    square = ", square = 1" if operator == "ReduceSumSquare" else ""
    return f"mean = {int(operator == 'ReduceMean')}{square}"


@pytest.mark.parametrize("operator", ["ReduceSum", "ReduceMean", "ReduceSumSquare"])
@pytest.mark.parametrize("name", SHAPES)
def test_sums_at_the_ends(name: str, operator: str) -> None:
    """Their numbers are added in another order."""
    before, axes, after, leading, trailing = SHAPES[name]
    flags = _flags(operator)
    assert_rewrites(
        Sums,
        f"""(float[{before}] x) => (float[{after}] y) <int64{axes.replace(" {", " a = {")}> {{
            y = {operator}(x, a)
        }}""",
        f"""(float[{before}] x) => (float[{after}] y) {{
            y = dort_rewriter.Sum<
                leading = {leading}, trailing = {trailing}, keepdims = 1, {flags}>(x)
        }}""",
        reference=False,
        rtol=1e-5,
        atol=1e-5,
    )


def test_axes_may_go() -> None:
    """Or be left out: all are summed."""
    assert_rewrites(
        Sums,
        "(float[4,N] x) => (float y) {y = ReduceSum<keepdims = 0>(x)}",
        """(float[4,N] x) => (float y) {
            y = dort_rewriter.Sum<leading = 2, trailing = 0, keepdims = 0, mean = 0>(x)
        }""",
        reference=False,
    )


def test_norms() -> None:
    assert_rewrites(
        Sums,
        """(float[4,N,70] x) => (float[4,N] y) <int64[1] a = {2}> {
            y = ReduceL2<keepdims = 0>(x, a)
        }""",
        """(float[4,N,70] x) => (float[4,N] y) {
            s = dort_rewriter.Sum<
                leading = 0, trailing = 1, keepdims = 0, mean = 0, square = 1>(x)
            y = Sqrt(s)
        }""",
        reference=False,
        rtol=1e-5,
    )


def _values(value: float) -> Any:
    x = np.ones((3, 5), dtype=np.float32)
    x[1, 2] = value
    return {"x": x}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(("axis", "after"), [(0, "1,5"), (1, "3,1")])
def test_what_is_not_finite(value: float, axis: int, after: str) -> None:
    """It spreads as far as it should."""
    assert_rewrites(
        Sums,
        f"(float[3,5] x) => (float[{after}] y) <int64[1] a = {{{axis}}}> {{y = ReduceSum(x, a)}}",
        f"""(float[3,5] x) => (float[{after}] y) {{
            y = dort_rewriter.Sum<
                leading = {1 - axis}, trailing = {axis}, keepdims = 1, mean = 0>(x)
        }}""",
        inputs=_values(value),
        reference=False,
    )


REFUSED = {
    "a norm of 16 bits": """(float16[2,3] x) => (float16[2,1] y) <int64[1] a = {1}> {
        y = ReduceL2(x, a)
    }""",
    "an axis between": """(float[2,3,4] x) => (float[2,1,4] y) <int64[1] a = {1}> {
        y = ReduceSum(x, a)
    }""",
    "16 bits, not side by side": """(float16[2,3,4,5] x) => (float16[2,1,4,1] y)
        <int64[2] a = {1, 3}> {y = ReduceSum(x, a)}""",
    "another type": "(double[2,3] x) => (double[2,1] y) <int64[1] a = {1}> {y = ReduceSum(x, a)}",
    "integers": "(int64[2,3] x) => (int64[2,1] y) <int64[1] a = {1}> {y = ReduceSum(x, a)}",
    "axes known at run time": "(float[2,3] x, int64[1] a) => (float[2,1] y) {y = ReduceSum(x, a)}",
    "an empty tensor": "(float[0,3] x) => (float[1,3] y) <int64[1] a = {0}> {y = ReduceSum(x, a)}",
    "no axes, nothing to do": """(float[2,3] x) => (float[2,3] y) {
        y = ReduceSum<noop_with_empty_axes = 1>(x)
    }""",
    "another reduction": "(float[2,3] x) => (float[1,1] y) {y = ReduceMax(x)}",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_left_alone(name: str) -> None:
    """For no fault of its own: no near miss is reported."""
    assert_refuses(Sums, REFUSED[name])


@pytest.mark.parametrize("operator", ["ReduceSum", "ReduceMean", "ReduceSumSquare"])
def test_16_bits(operator: str) -> None:
    """They are added up in float32."""
    flags = _flags(operator)
    how = f"leading = 1, trailing = 0, keepdims = 1, {flags}"
    assert_rewrites(
        Sums,
        f"(float16[300,N] x) => (float16[1,N] y) <int64[1] a = {{0}}> {{y = {operator}(x, a)}}",
        f"(float16[300,N] x) => (float16[1,N] y) {{y = dort_rewriter.Sum<{how}>(x)}}",
        reference=False,
        rtol=2e-3,
        atol=2e-3,
    )


@pytest.mark.parametrize("operator", ["ReduceSum", "ReduceMean", "ReduceSumSquare"])
def test_16_bits_in_between(operator: str) -> None:
    flags = _flags(operator)
    how = f"before = 1, leading = 2, keepdims = 1, {flags}"
    head = "(float16[2,3,N,70] x) => (float16[2,1,1,70] y)"
    assert_rewrites(
        Sums,
        f"{head} <int64[2] a = {{-2, 1}}> {{y = {operator}(x, a)}}",
        f"{head} {{y = dort_rewriter.Sum<{how}>(x)}}",
        reference=False,
        rtol=2e-3,
        atol=2e-3,
    )


def test_without_a_kernel_nothing_is_done() -> None:
    """No compiler, or another provider."""
    assert_refuses(Sums, "(float[2,3] x) => (float[1,1] y) {y = ReduceSum(x)}", kernels=False)


def test_what_follows_reads_the_new_node() -> None:
    """Several in one graph, one of them a result."""
    model = model_of("""(float[3,4] x) => (float[1,4] s, float[3,4] y) <int64[1] a = {0}> {
        s = ReduceSum(x, a)
        m = ReduceMean(x, a)
        y = Sub(x, m)
    }""")
    assert apply(Sums, model).rules["Sums"].matches == 2
    assert sorted(n.op_type for n in model.graph) == ["Sub", "Sum", "Sum"]
    assert [v.name for v in model.graph.outputs] == ["s", "y"]
