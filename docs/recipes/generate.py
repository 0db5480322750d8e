"""`generate` with a static cache: the step of one token is one graph, used for each token."""

from __future__ import annotations

import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 128}


def main() -> None:
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(num_attention_heads=4, num_key_value_heads=2, **SIZES))
    model.eval()
    how = GenerationConfig(
        max_new_tokens=16, do_sample=False, cache_implementation="static", pad_token_id=0
    )
    prompt = torch.arange(1, 9).view(1, 8)
    how.disable_compile = True  # transformers would compile the step by itself, with Inductor
    eager = model.generate(prompt, generation_config=how)
    model.forward = torch.compile(model.forward, backend="onnxrt")
    compiled = model.generate(prompt, generation_config=how)
    print("eager ", *eager[0].tolist())
    print("onnxrt", *compiled[0].tolist())
    assert torch.equal(eager, compiled)


if __name__ == "__main__":
    main()
