"""Updates scattered into zeros."""

from __future__ import annotations

import numpy as np
import pytest

from dort_rewriter.optimize.patterns.kernels.reductions import ConstantOfShapeScatterND
from tests.optimize.rewrites import assert_refuses, assert_rewrites

GRAPH = """(int64[2] shape, int64[N,1] i, {t}[N,4] u) => ({t}[A,4] y) {{
    zeros = ConstantOfShape<value = {t}[1] {{{value}}}>(shape)
    y = ScatterND<reduction = "{reduction}">(zeros, i, u)
}}"""
AFTER = """(int64[2] shape, int64[N,1] i, {t}[N,4] u) => ({t}[A,4] y) {{
    y = dort_rewriter.ScatterZeros<add = {add}>(shape, i, u)
}}"""


# onnxruntime has no ScatterND that adds float16: there is nothing to compare with.
@pytest.mark.parametrize(
    ("dtype", "reduction"),
    [("float", "add"), ("double", "add"), ("float", "none"), ("float16", "none")],
)
def test_zeros_are_written_by_the_kernel(dtype: str, reduction: str) -> None:
    """Rows that come twice are added; without a reduction each comes once."""
    numpy_type = {"float": np.float32, "double": np.float64, "float16": np.float16}[dtype]
    add = int(reduction == "add")
    updates = np.arange(12, dtype=numpy_type).reshape(3, 4)
    assert_rewrites(
        ConstantOfShapeScatterND,
        GRAPH.format(t=dtype, value=0, reduction=reduction),
        AFTER.format(t=dtype, add=add),
        inputs={
            "shape": np.array([6, 4]),
            "i": np.array([[1], [5], [1 if add else 0]]),
            "u": updates,
        },
        reference=False,
    )


def test_another_constant_stays() -> None:
    """The kernel starts from zeros."""
    text = GRAPH.format(t="float", value=1, reduction="add")
    assert_refuses(ConstantOfShapeScatterND, text, "the constant is not zero")


def test_other_reductions_stay() -> None:
    """The kernel adds or writes."""
    text = GRAPH.format(t="float", value=0, reduction="max")
    assert_refuses(ConstantOfShapeScatterND, text, "the updates are neither added nor written")


@pytest.mark.parametrize(("dtype", "kernels"), [("int64", True), ("float", False)])
def test_without_a_kernel_nothing_is_done(dtype: str, kernels: bool) -> None:
    """Integers, or no compiler."""
    text = GRAPH.format(t=dtype, value=0, reduction="add")
    assert_refuses(ConstantOfShapeScatterND, text, "no kernel", kernels=kernels)
