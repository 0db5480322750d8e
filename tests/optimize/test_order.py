"""order="memory": a lower peak, the same numbers."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from dort_rewriter import OptimizationOptions, OptionError
from dort_rewriter.optimize.order import order_by_memory, peak_bytes
from dort_rewriter.optimize.pipeline import optimize
from dort_rewriter.optimize.rewriting import OptimizeReport
from dort_rewriter.runtime.kernel_query import kernel_query
from tests.optimize.rewrites import model_of, random_inputs, run_onnxruntime

WIDE = """(float[100] x) => (float y) <float zero = {0}> {
    a = Exp(x)
    b = Sin(x)
    c = Neg(x)
    ra = ReduceSum<keepdims=0>(a)
    rb = ReduceSum<keepdims=0>(b)
    rc = ReduceSum<keepdims=0>(c)
    ab = Add(ra, rb)
    y = Add(ab, rc)
}"""
"""All the large results first: 3 x 400 bytes where 400 are enough."""


def _ordered(model: ir.Model, **options: object) -> OptimizeReport:
    chosen = OptimizationOptions(patterns=None, **options)  # type: ignore[arg-type]
    return optimize(model, chosen, has_kernel=kernel_query())


def test_the_peak_falls_and_the_numbers_stay() -> None:
    """As the report says."""
    model = model_of(WIDE)
    original = ir.to_proto(model)
    report = _ordered(model, order="memory")
    assert report.peak_bytes == (1204, 408)
    assert peak_bytes(model.graph) == 408
    assert "1204 -> 408 bytes" in report.summary()
    changed = ir.to_proto(model)
    feeds = random_inputs(original)
    np.testing.assert_array_equal(
        run_onnxruntime(changed, feeds)[0], run_onnxruntime(original, feeds)[0]
    )


def test_a_good_order_stays() -> None:
    """Also on a second call."""
    model = model_of(WIDE)
    _ordered(model, order="memory")
    nodes = list(model.graph)
    assert order_by_memory(model.graph) == (408, 408)
    assert list(model.graph) == nodes


def test_views_share_memory() -> None:
    """A reshaped result is not counted twice, and lives as long as its last view."""
    model = model_of("""(float[4,25] x) => (float[100] y) <int64[1] shape = {100}> {
        a = Exp(x)
        b = Reshape(a, shape)
        c = Neg(b)
        y = Sin(c)
    }""")
    assert peak_bytes(model.graph) == 800


def test_outputs_are_kept() -> None:
    """What the model returns is never free again, inputs and constants never counted."""
    model = model_of("""(float[100] x) => (float[100] a, float[100] c) {
        a = Exp(x)
        b = Neg(x)
        c = Sin(b)
    }""")
    assert peak_bytes(model.graph) == 1200


def test_what_a_subgraph_reads_comes_before_it() -> None:
    """Its readers are in another graph."""
    model = model_of("""(float[N] x, bool c) => (float[N] y) {
        big = Exp(x)
        a = Neg(big)
        y = If (c) <
            then_branch = yes () => (float[N] t) { t = Abs(a) },
            else_branch = no () => (float[N] e) { e = Identity(big) }
        >
    }""")
    expected = run_onnxruntime(ir.to_proto(model), feeds := random_inputs(ir.to_proto(model)))
    _ordered(model, order="memory")
    got = run_onnxruntime(ir.to_proto(model), feeds)
    np.testing.assert_array_equal(got[0], expected[0])


def test_an_unknown_order_is_an_error() -> None:
    """It names those that are known."""
    with pytest.raises(OptionError, match="'memory'"):
        _ordered(model_of(WIDE), order="speed")
