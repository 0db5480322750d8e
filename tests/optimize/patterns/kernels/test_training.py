"""The kernels in a training step: the numbers of eager, in models that use all of them."""

from __future__ import annotations

import copy
from pathlib import Path

import onnx
import pytest
import torch

from dort_rewriter import OptimizationOptions
from dort_rewriter.backends.onnxrt import OrtBackend
from dort_rewriter.kernels.operators import OWN_DOMAIN
from dort_rewriter.options import OrtBackendOptions
from tests.export.models import MODELS
from tests.export.test_models import step

USED = {
    "llama-eager": {"Elementwise", "RmsNormGrad", "Rotary", "ScatterZeros", "SoftmaxGrad", "Sum"},
    "bert-sdpa": {"Elementwise", "GeluGrad", "LayerNorm", "LayerNormGrad", "ScatterZeros", "Sum"},
    "cnn": {"BatchNorm", "BatchNormGrad", "Columns", "Elementwise", "GeluGrad", "Sum"},
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", USED)
def test_a_training_step(
    name: str, dynamic: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forward and backward have the kernels, and results and gradients are eager's."""
    monkeypatch.setenv("ONNXRT_DUMP_PATH", str(tmp_path / "graph"))
    torch.manual_seed(0)
    torch._dynamo.reset()
    model, inputs = MODELS[name]()
    reference = copy.deepcopy(model.train())
    selection = OptimizationOptions(patterns="default+onnxruntime+experimental")
    backend = OrtBackend(
        OrtBackendOptions(optimization=selection, fallback=False, placement={"*": "onnxruntime"})
    )
    compiled = torch.compile(model, backend=backend, dynamic=dynamic, fullgraph=True)
    got, expected = step(model, compiled, inputs), step(reference, reference, inputs)
    torch.testing.assert_close(got, expected, atol=2e-5, rtol=2e-5)
    models = [onnx.load(path) for path in tmp_path.glob("*.onnx")]
    used = {n.op_type for m in models for n in m.graph.node if n.domain == OWN_DOMAIN}
    assert used >= USED[name]
