"""Ten small models of as many families for the benchmarks, whose training step takes a few
milliseconds: written in torch, or from transformers with random weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

__all__ = ["FAMILIES", "First"]


class First(nn.Module):
    """A model of transformers that returns its first result."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return self.model(given, return_dict=False)[0]  # type: ignore[no-any-return]


def _tokens(batch: int, length: int) -> tuple[torch.Tensor]:
    return (torch.randint(0, 512, (batch, length)),)


def electra() -> tuple[nn.Module, Any]:
    from transformers import ElectraConfig, ElectraModel

    config = ElectraConfig(
        vocab_size=512, embedding_size=64, hidden_size=128, num_hidden_layers=2,
        num_attention_heads=4, intermediate_size=512, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return First(ElectraModel(config)), _tokens(2, 64)


def t5() -> tuple[nn.Module, Any]:
    from transformers import T5Config, T5EncoderModel

    config = T5Config(
        vocab_size=512, d_model=128, d_kv=32, d_ff=512, num_layers=2, num_heads=4,
        dropout_rate=0.0, use_cache=False,
    )  # fmt: skip
    return First(T5EncoderModel(config)), _tokens(2, 64)


def qwen2() -> tuple[nn.Module, Any]:
    from transformers import Qwen2Config, Qwen2Model

    config = Qwen2Config(
        vocab_size=512, hidden_size=128, intermediate_size=256, num_hidden_layers=2,
        num_attention_heads=8, num_key_value_heads=2, use_cache=False,
    )  # fmt: skip
    return First(Qwen2Model(config)), _tokens(2, 64)


def gemma() -> tuple[nn.Module, Any]:
    from transformers import GemmaConfig, GemmaModel

    config = GemmaConfig(
        vocab_size=512, hidden_size=128, intermediate_size=512, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=1, head_dim=32, use_cache=False,
    )  # fmt: skip
    return First(GemmaModel(config)), _tokens(2, 64)


class Conformer(nn.Module):
    """Attention, then a gated convolution along the sequence, as speech models have them."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.parts, self.joined = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.gates, self.mixed = nn.Conv1d(width, 2 * width, 1), nn.Conv1d(width, width, 1)
        self.along = nn.Conv1d(width, width, 15, padding=7, groups=width)
        self.batch_norm = nn.BatchNorm1d(width)
        self.forward_layers = nn.Sequential(
            nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.parts(self.norms[0](x)).view(batch, length, 3, self.heads, -1).unbind(2)
        y = nn.functional.scaled_dot_product_attention(*(p.transpose(1, 2) for p in parts))
        x = x + self.joined(y.transpose(1, 2).reshape(batch, length, width))
        y = nn.functional.glu(self.gates(self.norms[1](x).transpose(1, 2)), dim=1)
        y = self.mixed(nn.functional.silu(self.batch_norm(self.along(y))))
        x = x + y.transpose(1, 2)
        return x + 0.5 * self.forward_layers(self.norms[2](x))


def conformer() -> tuple[nn.Module, Any]:
    return nn.Sequential(Conformer(96, 4), Conformer(96, 4)), (torch.randn(2, 64, 96),)


class ConvNext(nn.Module):
    """A depthwise convolution, and a perceptron at each place."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.around = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 0.1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.around(x).permute(0, 2, 3, 1))
        y = self.scale * self.narrow(nn.functional.gelu(self.wide(y)))
        return x + y.permute(0, 3, 1, 2)


def convnext() -> tuple[nn.Module, Any]:
    layers = [nn.Conv2d(3, 48, 4, stride=4), *(ConvNext(48) for _ in range(3))]
    return nn.Sequential(*layers), (torch.randn(2, 3, 64, 64),)


class Mixer(nn.Module):
    """A perceptron over places, and one over channels."""

    def __init__(self, places: int, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.over_places = nn.Sequential(
            nn.Linear(places, 2 * places), nn.GELU(), nn.Linear(2 * places, places)
        )
        self.over_channels = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.over_places(self.first(x).transpose(1, 2)).transpose(1, 2)
        return x + self.over_channels(self.second(x))


def mixer() -> tuple[nn.Module, Any]:
    return nn.Sequential(*(Mixer(64, 96) for _ in range(3))), (torch.randn(2, 64, 96),)


class SpatialGate(nn.Module):
    """A gMLP block: one half of the channels, mixed over places, gates the other."""

    def __init__(self, places: int, width: int) -> None:
        super().__init__()
        self.norm, self.half_norm = nn.LayerNorm(width), nn.LayerNorm(2 * width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(2 * width, width)
        self.over_places = nn.Conv1d(places, places, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept, gate = nn.functional.gelu(self.wide(self.norm(x))).chunk(2, dim=-1)
        return x + self.narrow(kept * self.over_places(self.half_norm(gate)))


def gmlp() -> tuple[nn.Module, Any]:
    return nn.Sequential(*(SpatialGate(64, 96) for _ in range(3))), (torch.randn(2, 64, 96),)


class HandmadeGRU(nn.Module):
    """A gated recurrent unit, written out over its steps."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.of_input, self.of_state = nn.Linear(width, 3 * width), nn.Linear(width, 3 * width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state, states = x.new_zeros(x.shape[0], x.shape[2]), []
        for given in self.of_input(x).unbind(1):
            a, b, c = given.chunk(3, dim=-1)
            d, e, f = self.of_state(state).chunk(3, dim=-1)
            update = torch.sigmoid(b + e)
            state = update * state + (1 - update) * torch.tanh(c + torch.sigmoid(a + d) * f)
            states.append(state)
        return torch.stack(states, 1)


class HandmadeLSTM(nn.Module):
    """Long short-term memory with a normalized state, written out over its steps."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.of_input, self.of_state = nn.Linear(width, 4 * width), nn.Linear(width, 4 * width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = cell = x.new_zeros(x.shape[0], x.shape[2])
        for given in self.of_input(x).unbind(1):
            a, b, c, d = (given + self.of_state(state)).chunk(4, dim=-1)
            cell = torch.sigmoid(a) * cell + torch.sigmoid(b) * torch.tanh(c)
            state = torch.sigmoid(d) * torch.tanh(self.norm(cell))
        return state


FAMILIES: Mapping[str, Callable[[], tuple[nn.Module, Any]]] = {
    "electra": electra,
    "t5": t5,
    "qwen2": qwen2,
    "gemma": gemma,
    "conformer": conformer,
    "convnext": convnext,
    "mixer": mixer,
    "gmlp": gmlp,
    "gru": lambda: (HandmadeGRU(128), (torch.randn(8, 16, 128),)),
    "lstm": lambda: (HandmadeLSTM(128), (torch.randn(8, 16, 128),)),
}
