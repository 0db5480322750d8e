"""LoRA with peft: frozen weights, two small matrices beside each, trained."""

from __future__ import annotations

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 128}


def adapted() -> torch.nn.Module:
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(num_attention_heads=4, num_key_value_heads=2, **SIZES))
    return get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))


def train(model: torch.nn.Module) -> list[float]:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-2)
    losses = []
    for step in range(8):
        tokens = torch.arange(4 * 32).view(4, 32).add(step) % 128
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses


def main() -> None:
    eager = train(adapted())
    model = adapted()
    model.compile(backend="onnxrt")
    compiled = train(model)
    print("eager ", *(f"{loss:.4f}" for loss in eager))
    print("onnxrt", *(f"{loss:.4f}" for loss in compiled))
    torch.testing.assert_close(compiled, eager, atol=1e-4, rtol=1e-4)
    merged = model.merge_and_unload()  # a plain model again
    merged.compile(backend="onnxrt")
    tokens = torch.arange(32).view(1, 32)
    with torch.no_grad():
        torch.testing.assert_close(
            merged(tokens).logits, model(tokens).logits, atol=1e-4, rtol=1e-4
        )


if __name__ == "__main__":
    main()
