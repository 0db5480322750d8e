"""docs/optimizer.md says who fuses what: each side is asked alone."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from dort_rewriter.backends.optimize_onnx import optimize_model
from dort_rewriter.options import OptimizationOptions
from dort_rewriter.runtime.kernel_query import kernel_query
from tests.optimize.rewrites import model_of

HEADER = """(float[2,4,8] x, float[8] w) => (float[2,4,8] y) <float e = {1e-6},
    int64[1] last = {-1}, float half = {0.5}, float one = {1.0}, float two = {2.0},
    float root = {0.70710677}>"""
LAYERS = {
    "silu": "s = Sigmoid(x) y = Mul(x, s)",
    "gelu": "h = Mul(x, half) a = Mul(x, root) f = Erf(a) g = Add(f, one) y = Mul(h, g)",
    "biased gelu": "b = Add(x, w) y = com.microsoft.Gelu(b)",
    "rms norm": """s = Mul(x, x) m = ReduceMean<keepdims=1>(s, last) v = Add(m, e) d = Sqrt(v)
        r = Reciprocal(d) n = Mul(x, r) y = Mul(w, n)""",
    "layer norm by hand": """k = ReduceMean<keepdims=1>(x, last) c = Sub(x, k) s = Mul(c, c)
        m = ReduceMean<keepdims=1>(s, last) v = Add(m, e) d = Sqrt(v) r = Reciprocal(d)
        n = Mul(c, r) g = Mul(n, w) y = Add(g, w)""",
    "layer norm divided": """k = ReduceMean<keepdims=1>(x, last) c = Sub(x, k) s = Pow(c, two)
        m = ReduceMean<keepdims=1>(s, last) v = Add(m, e) d = Sqrt(v) n = Div(c, d)
        g = Mul(n, w) y = Add(g, w)""",
}
IMAGE = """(float[1,2,4,4] x, float[2,2,1,1] w) => (float[1,2,4,4] y)
    <float[2,2,1,1] k = {1, 2, 3, 4}, float[2] a = {1, 2}, float[2,1,1] b = {3, 4}>"""


def ours(model: ir.Model) -> set[str]:
    """The operators that the rules leave."""
    optimize_model(model, OptimizationOptions(patterns="default+onnxruntime"))
    return {node.op_type for node in model.graph}


def theirs(model: ir.Model, folder: Path) -> set[str]:
    """The operators that onnxruntime makes of a model."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    onnxruntime.InferenceSession(
        ir.to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return {node.op_type for node in onnx.load(options.optimized_model_filepath).graph.node}


@pytest.mark.parametrize(
    ("layer", "fused"), [("gelu", "Gelu"), ("rms norm", "SimplifiedLayerNormalization")]
)
def test_what_is_done_here(layer: str, fused: str, tmp_path: Path) -> None:
    """onnxruntime does not find it."""
    text = f"{HEADER} {{{LAYERS[layer]}}}"
    assert ours(model_of(text)) == {fused}
    assert fused not in theirs(model_of(text), tmp_path)


@pytest.mark.parametrize(("layer", "fused"), [("silu", "QuickGelu"), ("biased gelu", "BiasGelu")])
def test_what_is_left_to_onnxruntime(layer: str, fused: str, tmp_path: Path) -> None:
    """No rule stands for it."""
    text = f"{HEADER} {{{LAYERS[layer]}}}"
    assert fused not in ours(model_of(text))
    assert theirs(model_of(text), tmp_path) == {fused}


def test_norms_written_by_hand(tmp_path: Path) -> None:
    """onnxruntime finds those that divide by the deviation, the rules those that multiply."""
    multiplied = f"{HEADER} {{{LAYERS['layer norm by hand']}}}"
    divided = f"{HEADER} {{{LAYERS['layer norm divided']}}}"
    parts = {"ReduceMean", "Sub", "SimplifiedLayerNormalization", "Add"}
    assert ours(model_of(multiplied)) == parts
    assert "Reciprocal" in theirs(model_of(multiplied), tmp_path)
    assert theirs(model_of(divided), tmp_path) == {"LayerNormalization"}


def test_there_is_no_kernel_for_a_mask_before_a_softmax() -> None:
    """On the CPU: a rule could never apply."""
    required = {"axis": 1, "is_inner_broadcast": 1}
    query = kernel_query()
    assert not query("BiasSoftmax", "com.microsoft", 1, [1, 1], attributes=required)


@pytest.mark.parametrize(
    ("layers", "fused"),
    [
        ("c = Conv(x, k) y = BatchNormalization(c, a, a, a, a)", "Conv"),
        ("c = Conv(x, k) y = Mul(c, b)", "Conv"),
        ("c = Conv(x, w) y = Relu(c)", "FusedConv"),
        ("c = Conv(x, w) y = Sigmoid(c)", "FusedConv"),
    ],
)
def test_what_follows_a_convolution_is_left_to_onnxruntime(
    layers: str, fused: str, tmp_path: Path
) -> None:
    """Weights that are constants, as ``freeze`` and files have them, are folded as well."""
    text = f"{IMAGE} {{{layers}}}"
    assert {"Conv"} < ours(model_of(text))
    assert theirs(model_of(text), tmp_path) - {"ReorderInput", "ReorderOutput"} == {fused}


def test_an_activation_after_a_product_is_left_to_onnxruntime(tmp_path: Path) -> None:
    """A product of matrices."""
    text = """(float[2,3] x, float[3,4] w, float[4] b) => (float[2,4] y)
        {c = Gemm(x, w, b) y = Relu(c)}"""
    assert ours(model_of(text)) == {"Gemm", "Relu"}
    assert theirs(model_of(text), tmp_path) == {"FusedGemm"}
