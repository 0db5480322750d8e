"""Models of Hugging Face: one graph for all sizes, forward, backward and generation."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.backends.ways import compile_strictly, models

SHAPES = ((2, 8), (4, 7), (9, 15))
Inputs = dict[str, Any]


def config(attention: str) -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(
        hidden_size=16,
        num_attention_heads=2,
        num_key_value_heads=1,
        num_hidden_layers=1,
        vocab_size=32,
        intermediate_size=24,
        max_position_embeddings=64,
        attn_implementation=attention,
        use_cache=False,
    )


class Attention(nn.Module):
    """The attention of Llama with its rotary embedding."""

    def __init__(self, attention: str) -> None:
        super().__init__()
        from transformers.models.llama import modeling_llama

        chosen = config(attention)
        self.rotary = modeling_llama.LlamaRotaryEmbedding(chosen)
        self.part = self.build(modeling_llama, chosen)

    def build(self, modeling: Any, chosen: Any) -> nn.Module:
        return modeling.LlamaAttention(chosen, layer_idx=0)

    def forward(self, states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(states.shape[1]).unsqueeze(0)
        embeddings = self.rotary(states, positions)
        result = self.part(states, position_embeddings=embeddings, attention_mask=mask)
        return result[0] if isinstance(result, tuple) else result


class DecoderLayer(Attention):
    """A layer of Llama."""

    def build(self, modeling: Any, chosen: Any) -> nn.Module:
        return modeling.LlamaDecoderLayer(chosen, layer_idx=0)


class Model(nn.Module):
    """Llama without its head."""

    def __init__(self, attention: str) -> None:
        super().__init__()
        from transformers import LlamaModel

        self.model = LlamaModel(config(attention))

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state


def states(batch: int, length: int) -> Inputs:
    mask = torch.full((length, length), torch.finfo(torch.float32).min).triu(1)
    return {
        "states": torch.randn(batch, length, 16, requires_grad=True),
        "mask": mask.expand(batch, 1, length, length).contiguous(),
    }


def tokens(batch: int, length: int) -> Inputs:
    mask = torch.ones(batch, length, dtype=torch.int64)
    mask[0, :3] = 0
    return {"input_ids": torch.randint(0, 32, (batch, length)), "attention_mask": mask}


def floats(inputs: Inputs) -> list[torch.Tensor]:
    """The inputs that get a gradient."""
    return [v for v in inputs.values() if v.requires_grad]


PARTS: dict[str, tuple[Callable[[str], nn.Module], Callable[[int, int], Inputs]]] = {
    "attention": (Attention, states),
    "decoder layer": (DecoderLayer, states),
    "model": (Model, tokens),
}


def _symbols(info: Any) -> list[int]:
    """Count the symbolic sizes of the inputs and of the outputs of a session."""
    return [
        sum(bool(d.dim_param) for v in values for d in v.type.tensor_type.shape.dim)
        for values in (info.input_value_infos, info.output_value_infos)
    ]


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("part", PARTS)
def test_one_graph_forward_and_one_backward_for_all_sizes(part: str, attention: str) -> None:
    build, draw = PARTS[part]
    model = build(attention)
    twin = copy.deepcopy(model)
    compiled, backend = compile_strictly(model, dynamic=True)
    for shape in SHAPES:
        inputs = draw(*shape)
        got, want = compiled(**inputs), twin(**inputs)
        torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)
        gradients = [
            torch.autograd.grad(result.square().mean(), [*module.parameters(), *floats(inputs)])
            for module, result in ((model, got), (twin, want))
        ]
        torch.testing.assert_close(*gradients, atol=1e-4, rtol=1e-4)
    assert models(backend) == [1, 1]
    assert backend.execution_count == 2 * len(SHAPES)
    (forward,), (backward,) = (
        backend._all_ort_execution_info.execution_info_per_graph_module.values()
    )
    assert all(_symbols(forward))
    # The gradients of parameters have fixed sizes, those of an input have its own.
    assert [n > 0 for n in _symbols(backward)] == [True, bool(floats(inputs))]


@pytest.mark.alternating
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_inference_is_one_graph_for_all_sizes(attention: str) -> None:
    model = Model(attention).eval()
    compiled, backend = compile_strictly(model, dynamic=True)
    with torch.no_grad():
        for shape in SHAPES:
            inputs = tokens(*shape)
            torch.testing.assert_close(compiled(**inputs), model(**inputs), atol=1e-4, rtol=1e-4)
    assert models(backend) == [1]
    assert backend.execution_count == len(SHAPES)


@pytest.mark.alternating
def test_generation_with_a_cache_gives_the_tokens_of_eager() -> None:
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM(config("sdpa")).eval()
    twin = copy.deepcopy(model)
    prompt = torch.randint(0, 32, (2, 5))
    asked = {"max_new_tokens": 6, "do_sample": False, "use_cache": True, "pad_token_id": 0}
    want = twin.generate(prompt, **asked)
    model.forward, backend = compile_strictly(model.forward, dynamic=True)
    assert torch.equal(model.generate(prompt, **asked), want)
    assert backend.execution_count >= 6


@pytest.mark.alternating
def test_a_cache_written_in_a_compiled_step_is_that_of_eager() -> None:
    from transformers import DynamicCache, LlamaForCausalLM

    model = LlamaForCausalLM(config("eager")).eval()
    compiled, _ = compile_strictly(model, dynamic=True)
    ids = torch.randint(0, 32, (2, 7))
    caches = DynamicCache(), DynamicCache()
    with torch.no_grad():
        for step in (ids[:, :4], ids[:, 4:5], ids[:, 5:6], ids[:, 6:7]):
            got, want = (
                run(step, None, None, cache, use_cache=True).logits
                for run, cache in zip((compiled, model), caches, strict=True)
            )
            torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)
    assert caches[0].get_seq_length() == caches[1].get_seq_length() == 7
