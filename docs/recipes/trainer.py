"""The Trainer of transformers: accumulated gradients, bfloat16, the losses of eager mode."""

from __future__ import annotations

import tempfile

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 128}


class Tokens(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Sentences to learn by heart."""

    def __len__(self) -> int:
        return 80

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.arange(index, index + 32) % 128
        return {"input_ids": tokens, "labels": tokens}


def train(**more: object) -> list[float]:
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(num_attention_heads=4, num_key_value_heads=2, **SIZES))
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            max_steps=10,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
            bf16=True,
            use_cpu=True,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            **more,
        )
        trainer = Trainer(model, arguments, train_dataset=Tokens())
        trainer.train()
    return [row["loss"] for row in trainer.state.log_history if "loss" in row]


def main() -> None:
    eager = train()
    compiled = train(torch_compile=True, torch_compile_backend="onnxrt")
    print("eager ", *(f"{loss:.3f}" for loss in eager))
    print("onnxrt", *(f"{loss:.3f}" for loss in compiled))
    torch.testing.assert_close(compiled, eager, atol=2e-2, rtol=0)  # losses of bfloat16


if __name__ == "__main__":
    main()
