"""Training steps under autocast: what is between the products has kernels of 16-bit numbers."""

from __future__ import annotations

import copy
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest
import torch

from dort_rewriter.backends.onnxrt import OrtBackend
from dort_rewriter.kernels.operators import OWN_DOMAIN
from dort_rewriter.options import OrtBackendOptions
from tests.export.models import MODELS
from tests.export.test_models import step

PRODUCTS = {"MatMul", "Gemm", "FusedMatMul", "FusedGemm", "Conv", "ConvTranspose"}
MOVES = {
    *("Cast", "Concat", "Expand", "Flatten", "Gather", "Identity", "Pad", "Reshape", "Slice"),
    *("Split", "Squeeze", "Transpose", "Unsqueeze"),
}
USED = {
    "llama-eager": {"Elementwise", "Rotary"},
    "bert-eager": {"Elementwise", "LayerNorm", "LayerNormGrad", "GeluGrad"},
    "vit": {"Elementwise", "LayerNorm", "LayerNormGrad"},
    "gpt2-eager": {"Elementwise", "LayerNorm", "LayerNormGrad"},
    "mlp": {"Elementwise"},
}
NARROW = {ir.DataType.FLOAT16, ir.DataType.BFLOAT16}
DTYPES = [torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES, ids=["bfloat16", "float16"])
@pytest.mark.parametrize("name", USED)
def test_a_training_step(
    name: str, dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As close to float64 as eager is, and no operator of 16-bit numbers is left to casts."""
    monkeypatch.setenv("ONNXRT_DUMP_PATH", str(tmp_path / "graph"))
    torch.manual_seed(0)
    torch._dynamo.reset()
    model, inputs = MODELS[name]()
    reference, exact = copy.deepcopy(model.train()), copy.deepcopy(model).double()
    backend = OrtBackend(OrtBackendOptions(fallback=False, placement={"*": "onnxruntime"}))
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    with torch.autocast("cpu", dtype=dtype):
        got, expected = step(model, compiled, inputs), step(reference, reference, inputs)
    wide = {k: v.double() if v.is_floating_point() else v for k, v in inputs.items()}
    _compare(got, expected, step(exact, exact, wide))
    models = [ir.from_proto(onnx.load(path)) for path in tmp_path.glob("*.onnx")]
    nodes = [node for m in models for node in m.graph]
    used = {n.op_type for n in nodes if n.domain == OWN_DOMAIN}
    assert used >= USED[name]
    left = {n.op_type for n in nodes if not n.domain and _is_narrow(n)}
    assert left <= PRODUCTS | MOVES
    around = [n for n in nodes if n.domain == OWN_DOMAIN and any(map(_is_cast, n.inputs))]
    assert around == []


def _compare(got: object, expected: object, exact: object) -> None:
    """Each tensor is no further from float64 than eager's, but for a rounding of the type."""
    leaves = [torch.utils._pytree.tree_leaves(t) for t in (got, expected, exact)]
    for a, b, c in zip(*leaves, strict=True):
        if not isinstance(a, torch.Tensor):
            continue
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        ours, theirs = ((t.double() - c.double()).norm() for t in (a, b))
        assert ours <= 2 * theirs + 4e-3 * c.double().norm() + 1e-3


def _is_narrow(node: ir.Node) -> bool:
    values = (*node.inputs, *node.outputs)
    return any(v is not None and v.dtype in NARROW for v in values)


def _is_cast(value: ir.Value | None) -> bool:
    """Whether a value was widened for the kernel that reads it."""
    node = None if value is None else value.producer()
    if node is None or node.op_type != "Cast" or node.inputs[0] is None:
        return False
    return node.inputs[0].dtype in NARROW
