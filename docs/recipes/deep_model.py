"""A deep model: one of its layers is compiled and serves all, forward and backward."""

from __future__ import annotations

import copy
import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from dort_rewriter import compile_layers

SIZES = {"hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 24, "vocab_size": 128}


def make_model() -> torch.nn.Module:
    torch.manual_seed(0)
    # With a cache of keys and values each layer reads another part of it, and needs its own graph.
    config = LlamaConfig(num_attention_heads=2, num_key_value_heads=2, use_cache=False, **SIZES)
    return LlamaForCausalLM(config)


def train(model: torch.nn.Module) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for step in range(4):
        tokens = torch.arange(2 * 32).view(2, 32).add(step) % 128
        start = time.perf_counter()
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        print(f"  step {step}: {time.perf_counter() - start:.3f} s", flush=True)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses


def main() -> None:
    model = make_model()
    twin = copy.deepcopy(model)
    print("eager")
    eager = train(twin)
    print("onnxrt, layer by layer")
    compile_layers(model)  # in place; options as for torch.compile
    compiled = train(model)
    torch.testing.assert_close(compiled, eager, atol=1e-4, rtol=1e-4)
    assert model.state_dict().keys() == twin.state_dict().keys()

    # Weights inside the sessions, a copy for each layer.
    torch._dynamo.reset()
    compile_layers(model.eval(), options={"freeze": True})
    twin.load_state_dict(model.state_dict())
    tokens = torch.arange(32).view(1, 32)
    with torch.no_grad():
        torch.testing.assert_close(
            model(tokens).logits, twin.eval()(tokens).logits, atol=1e-4, rtol=1e-4
        )


if __name__ == "__main__":
    main()
