"""Transformers are saved with their outputs, and with a static cache that goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, StaticCache

import dort_rewriter
from dort_rewriter import OrtBackend, OrtBackendOptions
from dort_rewriter.plan.placement import ATTENTION


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


def llama(**settings: Any) -> LlamaForCausalLM:
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "vocab_size": 64}
    config = LlamaConfig(num_attention_heads=2, num_key_value_heads=1, **sizes, **settings)
    return LlamaForCausalLM(config).eval()


class Decoder(nn.Module):
    """A step of one token; the tensors of the cache are buffers."""

    def __init__(self, model: LlamaForCausalLM) -> None:
        super().__init__()
        self.model = model
        self.cache = StaticCache(config=model.config, max_cache_len=16)
        self.cache.early_initialization(1, 1, 16, torch.float32, torch.device("cpu"))
        for i, layer in enumerate(self.cache.layers):
            for name in ("keys", "values", "cumulative_length"):
                self.register_buffer(f"{name}_{i}", getattr(layer, name))

    def forward(self, token: torch.Tensor) -> torch.Tensor:
        return self.model(token, None, None, self.cache, use_cache=True).logits


@torch.no_grad()
@pytest.mark.alternating
def test_the_output_of_a_transformer(tmp_path: Path) -> None:
    """By name, with a mask, for any number of tokens."""
    compiled = torch.compile(llama(use_cache=False), backend=OrtBackend(), dynamic=True)
    dort_rewriter.save(
        compiled,
        tmp_path,
        input_ids=torch.ones(2, 6, dtype=torch.int64),
        attention_mask=torch.ones(2, 6, dtype=torch.int64),
    )
    loaded = dort_rewriter.load(tmp_path)
    for batch, length in ((2, 6), (3, 9)):
        ids = torch.randint(0, 64, (batch, length))
        mask = torch.ones_like(ids)
        mask[0, :2] = 0
        given = loaded(input_ids=ids, attention_mask=mask)
        assert torch.equal(given.logits, compiled(input_ids=ids, attention_mask=mask).logits)
        assert list(given) == ["logits"]
    cached = torch.compile(llama(), backend=OrtBackend())
    with pytest.raises(dort_rewriter.CaptureError, match=r"use_cache=False|not one graph"):
        dort_rewriter.save(cached, tmp_path, torch.ones(1, 4, dtype=torch.int64))


@torch.no_grad()
@pytest.mark.alternating
def test_a_decoder_goes_on(tmp_path: Path) -> None:
    decoder = Decoder(llama())
    compiled = torch.compile(decoder, backend=OrtBackend({"freeze": True}))
    token = torch.tensor([[3]])
    compiled(token)
    dort_rewriter.save(compiled, tmp_path)
    loaded = dort_rewriter.load(tmp_path)
    for _ in range(3):
        expected = compiled(token)
        assert torch.equal(loaded(token), expected)
        token = expected[:, -1].argmax(-1, keepdim=True)
    assert torch.equal(loaded.state["keys_0"], decoder.cache.layers[0].keys)


@torch.no_grad()
@pytest.mark.alternating
@pytest.mark.parametrize("early", [False, True])
def test_a_static_cache_among_the_arguments_is_left_as_it_was_by_a_warm_up(early: bool) -> None:
    model = llama()
    cache = StaticCache(config=model.config, max_cache_len=16)
    if early:
        cache.early_initialization(1, 1, 16, torch.float32, torch.device("cpu"))
    (layer,) = cache.layers
    before = dict(vars(layer))
    call = (torch.tensor([[3]]), None, None, cache)
    compiled = torch.compile(model, backend=OrtBackend())
    dort_rewriter.warm_up(compiled, [call])
    assert all(vars(layer)[name] is value for name, value in before.items())
    assert vars(layer).keys() == before.keys()
    assert int(layer.cumulative_length) == 0
    assert not early or not layer.keys.any()
    expected = model(*call[:3], StaticCache(config=model.config, max_cache_len=16)).logits
    torch.testing.assert_close(compiled(*call).logits, expected)


@torch.no_grad()
@pytest.mark.alternating
def test_a_growing_cache_among_the_arguments_is_left_as_it_was_by_a_warm_up() -> None:
    model = llama()
    cache = DynamicCache(config=model.config)
    model(torch.tensor([[1, 2, 3]]), None, None, cache)
    (layer,) = cache.layers
    keys, values = layer.keys, layer.values
    expected = keys.clone(), values.clone()
    call = (torch.tensor([[3]]), None, None, cache)
    dort_rewriter.warm_up(torch.compile(model, backend=OrtBackend()), [call])
    assert (layer.keys is keys, layer.values is values) == (True, True)
    assert cache.get_seq_length() == 3
    torch.testing.assert_close((keys, values), expected, rtol=0, atol=0)


@pytest.mark.alternating
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_training_step_of_a_transformer(dynamic: bool, tmp_path: Path) -> None:
    model = llama(use_cache=False).train()
    # Where MKL computes the gradient of attention, in a model that is not saved, bits differ.
    backend = OrtBackend(OrtBackendOptions(placement=dict.fromkeys(ATTENTION, "torch kernel")))
    compiled = torch.compile(model, backend=backend, dynamic=dynamic)

    def batch(rows: int, length: int) -> dict[str, torch.Tensor]:
        ids = torch.randint(0, 64, (rows, length))
        return {"input_ids": ids, "labels": ids}

    dort_rewriter.save(compiled, tmp_path, training=True, weights="reference", **batch(2, 6))
    loaded = dort_rewriter.load(tmp_path, model)
    for rows, length in ((2, 6), (3, 9) if dynamic else (2, 6)):
        given = batch(rows, length)
        found = []
        for call in (loaded, compiled):
            result = call(**given)
            result.loss.backward()
            found.append([result.loss.detach(), *(p.grad for p in model.parameters())])
            model.zero_grad()
        assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
