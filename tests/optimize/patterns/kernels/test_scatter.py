"""Updates scattered into zeros."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from dort_rewriter.optimize.patterns.kernels.scatter import (
    ConstantOfShapeScatterND,
    MaskedShapeScatterND,
)
from tests.optimize.rewrites import (
    apply,
    assert_refuses,
    assert_rewrites,
    model_of,
    run_onnxruntime,
)

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


MASKED = """(int64[2] shape, int64[N,1] i, {t}[N,4] u) => ({t}[A,4] y)
    <int64 c = {{-1}}, {t} zero = {{0}}> {{
    e = Equal({order})
    m = Where(e, zero, u)
    y = dort_rewriter.ScatterZeros<add = {add}>(shape, i, m)
}}"""


@pytest.mark.parametrize("order", ["i, c", "c, i"])
@pytest.mark.parametrize("dtype", ["float", "double", "float16"])
def test_masked_updates_are_left_out(dtype: str, order: str) -> None:
    """Rows of an index that does not count, whatever is in them; the other rows stay."""
    numpy_type = {"float": np.float32, "double": np.float64, "float16": np.float16}[dtype]
    updates = np.arange(12, dtype=numpy_type).reshape(3, 4) - 5
    updates[1, 2] = np.nan
    assert_rewrites(
        MaskedShapeScatterND,
        MASKED.format(t=dtype, add=1, order=order),
        f"""(int64[2] shape, int64[N,1] i, {dtype}[N,4] u) => ({dtype}[A,4] y) {{
            y = dort_rewriter.ScatterZeros<add = 1, masked = 1, skip = -1>(shape, i, u)
        }}""",
        inputs={"shape": np.array([6, 4]), "i": np.array([[1], [-1], [5]]), "u": updates},
        rtol=0,
        atol=0,
        reference=False,
    )


def test_the_last_row_is_another_index_than_minus_one() -> None:
    """The comparison is of numbers, not of places."""
    text = MASKED.format(t="float", add=1, order="i, c")
    model = model_of(text)
    original = ir.to_proto(model)
    assert apply(MaskedShapeScatterND, model).rules["MaskedShapeScatterND"].matches == 1
    feeds = {
        "shape": np.array([6, 4]),
        "i": np.array([[-1], [5], [-2]]),
        "u": np.ones((3, 4), dtype=np.float32),
    }
    (got,), (expected,) = (run_onnxruntime(m, feeds) for m in (ir.to_proto(model), original))
    np.testing.assert_array_equal(got, expected)
    assert got[4:].all()


def test_other_masks_stay() -> None:
    """Another value than zero, other indices, rows that are written or repeated."""
    text = MASKED.format(t="float", add=1, order="i, c")
    assert_refuses(MaskedShapeScatterND, text.replace("zero = {0}", "zero = {1}"))
    assert_refuses(MaskedShapeScatterND, text.replace("Equal(i, c)", "Equal(c, c)"))
    assert_refuses(MaskedShapeScatterND, text.replace("Equal(i, c)", "Greater(i, c)"))
    written = MASKED.format(t="float", add=0, order="i, c")
    reason = "the updates are not added, or masked already"
    assert_refuses(MaskedShapeScatterND, written, reason)
    repeated = text.replace("[N,4] u", "[1,4] u")
    assert_refuses(MaskedShapeScatterND, repeated, "the updates are repeated")
    deep = text.replace("int64[N,1] i", "int64[N,2] i").replace("[N,4] u", "[N,2] u")
    reason = "the indices are not one column beside the updates"
    assert_refuses(MaskedShapeScatterND, deep, reason)
    assert_refuses(MaskedShapeScatterND, text, "no kernel", kernels=False)
