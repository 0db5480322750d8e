"""A Llama of transformers with its static cache, as a file for the prompt and one for a token."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx.reference import ReferenceEvaluator
from torch import nn

from dort_rewriter import to_onnx
from dort_rewriter.ort_module import max_opset

transformers = pytest.importorskip("transformers", reason="transformers is an extra")

LONGEST, PROMPT, STEPS = 16, 4, 6
NEWEST = onnx.defs.onnx_opset_version()


class WithCache(nn.Module):
    """A step of a model: tokens, how many were before, keys and values of each layer."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, tokens: torch.Tensor, position: torch.Tensor, *states: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        cache = transformers.StaticCache(config=self.model.config, max_cache_len=LONGEST)
        pairs = zip(states[::2], states[1::2], strict=True)
        for layer, (keys, values) in zip(cache.layers, pairs, strict=True):
            layer.lazy_initialization(keys, values)
            layer.keys, layer.values = keys, values
            layer.cumulative_length = position.clone()
        logits = self.model(tokens, past_key_values=cache, use_cache=True).logits
        return logits[:, -1], *(s for layer in cache.layers for s in (layer.keys, layer.values))


def llama() -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 64}
    config = transformers.LlamaConfig(num_attention_heads=4, num_key_value_heads=2, **sizes)
    return transformers.LlamaForCausalLM(config).eval()


def states() -> list[torch.Tensor]:
    """An empty cache: two layers, keys and values."""
    return [torch.zeros(1, 2, LONGEST, 8) for _ in range(4)]


@torch.no_grad()
@pytest.mark.parametrize("opset", [18, 24])
def test_it_generates_as_eager_mode_does(opset: int) -> None:
    model = llama()
    prompt = torch.tensor([[3, 17, 5, 42]])
    want = model.generate(
        prompt, max_new_tokens=STEPS, do_sample=False, cache_implementation="static",
        disable_compile=True, output_logits=True, return_dict_in_generate=True,
    )  # fmt: skip
    names = [f"{kind}_{i}" for i in range(2) for kind in ("keys", "values")]
    files = {}
    for length in (PROMPT, 1):
        tokens = torch.ones(1, length, dtype=torch.int64)
        made = to_onnx(
            WithCache(model), (tokens, torch.tensor(0), *states()), target_opset=opset,
            input_names=["tokens", "position", *names],
            output_names=["logits", *(f"new_{name}" for name in names)],
        )  # fmt: skip
        onnx.checker.check_model(made)
        kinds = [node.op_type for node in made.graph.node]
        assert kinds.count("TensorScatter") == (4 if opset >= 24 else 0)
        files[length] = made
    assert [i.name for i in files[1].graph.input] == ["tokens", "position", *names]

    for judge in ("reference", *(["onnxruntime"] if opset <= max_opset() else [])):
        held = [s.numpy() for s in states()]
        tokens, position = prompt.numpy(), 0
        for i in range(STEPS):
            feeds = {
                "tokens": tokens,
                "position": np.array(position),
                **dict(zip(names, held, strict=True)),
            }
            logits, *held = runner(files[tokens.shape[1]], judge).run(None, feeds)
            np.testing.assert_allclose(logits, want.logits[i].numpy(), atol=2e-6, rtol=2e-5)
            position += tokens.shape[1]
            tokens = logits.argmax(-1).reshape(1, 1)
            assert tokens.item() == want.sequences[0, PROMPT + i]


def runner(model: onnx.ModelProto, judge: str) -> Any:
    if judge == "reference":
        return ReferenceEvaluator(model)
    return onnxruntime.InferenceSession(model.SerializeToString())
