"""docs/optimizer.md says who fuses what: each side is asked alone."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from dort_rewriter.backends.optimize_onnx import optimize_model
from dort_rewriter.options import OptimizationOptions
from tests.optimize.rewrites import model_of

HEADER = """(float[2,4,8] x, float[8] w) => (float[2,4,8] y) <float e = {1e-6},
    int64[1] last = {-1}, float half = {0.5}, float one = {1.0}, float root = {0.70710677}>"""
LAYERS = {
    "silu": "s = Sigmoid(x) y = Mul(x, s)",
    "gelu": "h = Mul(x, half) a = Mul(x, root) f = Erf(a) g = Add(f, one) y = Mul(h, g)",
    "biased gelu": "b = Add(x, w) y = com.microsoft.Gelu(b)",
    "rms norm": """s = Mul(x, x) m = ReduceMean<keepdims=1>(s, last) v = Add(m, e) d = Sqrt(v)
        r = Reciprocal(d) n = Mul(x, r) y = Mul(w, n)""",
}


def ours(model: ir.Model) -> set[str]:
    """Return the operators that the rules leave."""
    optimize_model(model, OptimizationOptions(patterns="default+onnxruntime"))
    return {node.op_type for node in model.graph}


def theirs(model: ir.Model, folder: Path) -> set[str]:
    """Return the operators that onnxruntime makes of a model."""
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
