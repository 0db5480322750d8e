"""What is fused in whole models, forward and backward, and that a second time finds nothing."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch

from dort_rewriter import OrtBackend
from dort_rewriter.backends.optimize_onnx import optimize_model
from dort_rewriter.options import OptimizationOptions, OrtBackendOptions
from dort_rewriter.ort_module import max_opset
from dort_rewriter.runtime.kernel_query import kernel_query
from tests.export.models import MODELS
from tests.export.test_models import step

SETS = "default+onnxruntime"
MS = "com.microsoft"
HAS_ROTARY = kernel_query()("RotaryEmbedding", MS, 1, [1, 7, 1, 1])
HAS_ATTENTION = kernel_query()(
    "MultiHeadAttention",
    MS,
    1,
    [1, 1, 1, None, None, 1],
    attributes={"num_heads": 3},
    shapes=[(2, 4, 24), (2, 3, 5, 8), (2, 3, 5, 8), None, None, (1, 1, 4, 5)],
)


def run(
    name: str, *, training: bool, dynamic: bool = False, opset: int = 18, patterns: str = SETS
) -> list[onnx.ModelProto]:
    """Run a model, compare it with eager, and return the models that ran."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    model, inputs = MODELS[name]()
    models: list[onnx.ModelProto] = []
    options = OrtBackendOptions(
        optimization=OptimizationOptions(patterns=patterns),
        target_opset=opset,
        pre_ort_model_transforms=[lambda m: models.append(copy.deepcopy(m))],
    )
    model.train(training)
    reference = copy.deepcopy(model)
    compiled = torch.compile(model, backend=OrtBackend(options), dynamic=dynamic, fullgraph=True)
    if training:
        got, expected = step(model, compiled, inputs), step(reference, reference, inputs)
    else:
        inputs.pop("labels", None)
        with torch.no_grad():
            got, expected = compiled(**inputs), reference(**inputs)
    torch.testing.assert_close(got, expected, atol=2e-5, rtol=2e-5)
    return models


def count(model: onnx.ModelProto) -> Counter[str]:
    """How many nodes of each operator there are."""
    return Counter(node.op_type for node in model.graph.node)


def transposes_read_by_products(model: onnx.ModelProto) -> list[str]:
    """The transposes of the last two axes that a product reads: it could do them."""
    made = {node.output[0]: node for node in model.graph.node if node.op_type == "Transpose"}
    products = [n for n in model.graph.node if n.op_type in ("MatMul", "FusedMatMul", "Gemm")]
    found = [made[name] for node in products for name in node.input if name in made]
    perms = [list(onnx.helper.get_attribute_value(node.attribute[0])) for node in found]
    return [str(p) for p in perms if len(p) > 1 and p[-1] != len(p) - 1]


def assert_settled(models: Sequence[onnx.ModelProto], patterns: str = SETS) -> None:
    """Check that applying the sets again changes nothing."""
    for model in models:
        report = optimize_model(ir.from_proto(model), OptimizationOptions(patterns=patterns))
        again = {r.name: r.matches for r in report.rules.values() if r.matches}
        assert again == {}


def test_training_step_of_llama() -> None:
    """All RMS norms of the forward graph, and no transpose before a product in either."""
    forward, backward = run("llama-sdpa", training=True)
    assert count(forward)["SimplifiedLayerNormalization"] == 3
    assert count(forward)["RotaryEmbedding"] == (2 if HAS_ROTARY else 0)
    for model in (forward, backward):
        assert transposes_read_by_products(model) == []
        assert not {"Identity", "Pow"} & set(count(model))
    assert_settled([forward, backward])


HAS_SKIP = kernel_query()("SkipSimplifiedLayerNormalization", MS, 1, [1, 1, 1])
INFERENCE: Mapping[str, Mapping[str, Any]] = {
    "llama-sdpa": {
        "SimplifiedLayerNormalization": 3 - 2 * HAS_SKIP,
        "SkipSimplifiedLayerNormalization": 2 * HAS_SKIP,
        "RotaryEmbedding": 2 * HAS_ROTARY,
        "MultiHeadAttention": 1 * HAS_ATTENTION,
        "Softmax": 1 - HAS_ATTENTION,
    },
    "bert-sdpa": {
        "LayerNormalization": 4,
        "Gelu": 2,
        "Erf": 0,
        "MultiHeadAttention": 1 * HAS_ATTENTION,
        "Softmax": 1 - HAS_ATTENTION,
    },
    "gpt2-sdpa": {
        "LayerNormalization": 3,
        "FastGelu": 1,
        "Tanh": 0,
        "MultiHeadAttention": 1 * HAS_ATTENTION,
    },
    "vit": {  # the mask that transformers gives it on torch 2.8 hides nothing and is left out
        "LayerNormalization": 3,
        "Gelu": 1,
        "Erf": 0,
        "MultiHeadAttention": 1,
    },
}


@pytest.mark.parametrize("name", INFERENCE)
def test_inference(name: str) -> None:
    """Norms, activations and attention, in exact numbers."""
    (model,) = run(name, training=False)
    found = count(model)
    assert {op: found[op] for op in INFERENCE[name]} == dict(INFERENCE[name])
    assert transposes_read_by_products(model) == []
    assert_settled([model])


def test_inference_with_symbolic_sizes() -> None:
    """Dynamo makes epsilon an input of such a graph: the model holds what it is."""
    (model,) = run("llama-sdpa", training=False, dynamic=True)
    found = count(model)
    assert found["MultiHeadAttention"] == 1 * HAS_ATTENTION
    assert found["RotaryEmbedding"] == 2 * HAS_ROTARY
    assert found["SimplifiedLayerNormalization"] == 3 - 2 * HAS_SKIP
    assert found["SkipSimplifiedLayerNormalization"] == 2 * HAS_SKIP
    assert_settled([model])


def test_silu_is_left_to_onnxruntime(tmp_path: Path) -> None:
    """Which finds the one of each layer, in what the rules leave."""
    (model,) = run("llama-sdpa", training=False)
    assert count(model)["Sigmoid"] == 1
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    found = count(onnx.load(options.optimized_model_filepath))
    assert (found["QuickGelu"], found["Sigmoid"]) == (1, 0)


@pytest.mark.skipif(max_opset() < 23, reason="this onnxruntime has no opset 23")
@pytest.mark.parametrize(
    ("name", "norms", "attentions"), [("llama-sdpa", 3, 1), ("llama-eager", 3, 1), ("vit", 0, 1)]
)
def test_opset_23(name: str, norms: int, attentions: int) -> None:
    """Its operators, without any of onnxruntime's own."""
    (model,) = run(name, training=False, opset=23, patterns="default")
    found = count(model)
    assert (found["RMSNormalization"], found["Attention"]) == (norms, attentions)
    assert not any(node.domain for node in model.graph.node)
    assert_settled([model], "default")
