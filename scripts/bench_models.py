"""The models the benchmarks compare backends on: small enough for two cores, written in torch,
or from transformers with random weights; those of `bench_families.py` too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from bench_families import FAMILIES, First
from torch import nn

__all__ = ["MODELS", "BenchModel", "build"]


@dataclass(frozen=True)
class BenchModel:
    """A module and one batch; ``loss`` makes a number of what the module returns."""

    name: str
    module: nn.Module
    args: tuple[torch.Tensor, ...]

    def loss(self, result: Any) -> torch.Tensor:
        """A number every result counts in."""
        return (result * result).mean()

    def to(self, device: str) -> BenchModel:
        """The same on a device."""
        args = tuple(argument.to(device) for argument in self.args)
        return BenchModel(self.name, self.module.to(device), args)


def mlp(width: int, batch: int, inputs: int, outputs: int) -> tuple[nn.Module, Any]:
    module = nn.Sequential(
        nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, outputs),
    )  # fmt: skip
    return module, (torch.randn(batch, inputs),)


def small_mlp() -> tuple[nn.Module, Any]:
    module = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1))
    return module, (torch.randn(16, 10),)


def cnn() -> tuple[nn.Module, Any]:
    module = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 64, 10),
    )  # fmt: skip
    return module, (torch.randn(16, 3, 32, 32),)


class Basic(nn.Module):
    """The block of ResNet-18."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.skip: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.skip = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.norm1(self.first(x)))
        return torch.relu(self.norm2(self.second(y)) + self.skip(x))


def resnet18() -> tuple[nn.Module, Any]:
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
    ]  # fmt: skip
    width = 64
    for stage in range(4):
        wide = 64 * 2**stage
        layers += [Basic(width, wide, 1 if stage == 0 else 2), Basic(wide, wide, 1)]
        width = wide
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 100)]
    return nn.Sequential(*layers), (torch.randn(4, 3, 64, 64),)


class Dense(nn.Module):
    """One layer of DenseNet: what it computes is put beside its input."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.BatchNorm2d(inputs), nn.ReLU(), nn.Conv2d(inputs, 4 * growth, 1, bias=False),
            nn.BatchNorm2d(4 * growth), nn.ReLU(),
            nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, self.body(x)], 1)


def densenet121() -> tuple[nn.Module, Any]:
    growth, width = 32, 64
    layers: list[nn.Module] = [
        nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
    ]  # fmt: skip
    for stage, count in enumerate((6, 12, 24, 16)):
        for _ in range(count):
            layers.append(Dense(width, growth))
            width += growth
        if stage < 3:
            layers += [
                nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, width // 2, 1, bias=False),
                nn.AvgPool2d(2),
            ]  # fmt: skip
            width //= 2
    layers += [
        nn.BatchNorm2d(width), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(width, 100),
    ]  # fmt: skip
    return nn.Sequential(*layers), (torch.randn(2, 3, 64, 64),)


def llama(hidden: int, layers: int, batch: int, length: int) -> tuple[nn.Module, Any]:
    from transformers import LlamaConfig, LlamaModel

    config = LlamaConfig(
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=max(2, hidden // 64),
        num_key_value_heads=max(2, hidden // 64),
        vocab_size=1024,
        max_position_embeddings=1024,
        use_cache=False,
    )
    return First(LlamaModel(config)), (torch.randint(0, 1024, (batch, length)),)


def gpt2() -> tuple[nn.Module, Any]:
    from transformers import GPT2Config, GPT2Model

    config = GPT2Config(
        n_embd=256, n_layer=2, n_head=4, vocab_size=1024, n_positions=256, use_cache=False,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    return First(GPT2Model(config)), (torch.randint(0, 1024, (2, 128)),)


def bert() -> tuple[nn.Module, Any]:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        hidden_size=256, num_hidden_layers=2, num_attention_heads=4, intermediate_size=1024,
        vocab_size=1024, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return First(BertModel(config, add_pooling_layer=False)), (torch.randint(0, 1024, (2, 128)),)


def vit() -> tuple[nn.Module, Any]:
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(
        hidden_size=192, num_hidden_layers=4, num_attention_heads=3, intermediate_size=768,
        image_size=64, patch_size=8, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return First(ViTModel(config, add_pooling_layer=False)), (torch.randn(4, 3, 64, 64),)


MODELS: Mapping[str, Callable[[], tuple[nn.Module, Any]]] = {
    "mlp-10-32-1": small_mlp,
    "mlp-512": lambda: mlp(512, 64, 512, 512),
    "cnn": cnn,
    "resnet18": resnet18,
    "densenet121": densenet121,
    "llama-16x1": lambda: llama(16, 1, 2, 8),
    "llama-256x2": lambda: llama(256, 2, 4, 128),
    "llama-1024x1": lambda: llama(1024, 1, 2, 256),
    "gpt2": gpt2,
    "bert": bert,
    "vit": vit,
    **FAMILIES,
}

LARGE: Mapping[str, Callable[[], tuple[nn.Module, Any]]] = {
    "llama-4096x1": lambda: llama(4096, 1, 2, 1024),
}
"""For a GPU: they run when they are named."""


def build(name: str) -> BenchModel:
    """Build a model, the same weights and batch each time."""
    torch.manual_seed(0)
    module, args = {**MODELS, **LARGE}[name]()
    return BenchModel(name, module, args)
