"""The model of the demonstration: a Llama in plain torch, and a batch that it can learn."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F


@dataclass(frozen=True, kw_only=True)
class Size:
    """The sizes of the model and of its batch."""

    layers: int = 2
    hidden: int = 256
    heads: int = 4
    vocabulary: int = 1024
    batch: int = 4
    length: int = 128
    """Tokens of each row."""

    def __str__(self) -> str:
        return (
            f"A Llama of {self.layers} layers, {self.hidden} wide, "
            f"{self.batch} x {self.length} tokens"
        )


class RMSNorm(nn.Module):
    """The norm of a Llama: by the root of the mean of the squares."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scale each row."""
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class Attention(nn.Module):
    """Causal attention with rotary positions, two heads of queries to one of keys and values."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads, self.width = size.heads, size.hidden // size.heads
        self.key_heads = max(size.heads // 2, 1)
        self.query = nn.Linear(size.hidden, size.hidden, bias=False)
        self.key = nn.Linear(size.hidden, self.key_heads * self.width, bias=False)
        self.value = nn.Linear(size.hidden, self.key_heads * self.width, bias=False)
        self.out = nn.Linear(size.hidden, size.hidden, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """Let each token look at those before it."""
        batch, length, hidden = x.shape
        q = self.query(x).view(batch, length, self.heads, self.width).transpose(1, 2)
        k = self.key(x).view(batch, length, self.key_heads, self.width).transpose(1, 2)
        v = self.value(x).view(batch, length, self.key_heads, self.width).transpose(1, 2)
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        repeats = self.heads // self.key_heads
        k, v = k.repeat_interleave(repeats, dim=1), v.repeat_interleave(repeats, dim=1)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(seen.transpose(1, 2).reshape(batch, length, hidden))


class Layer(nn.Module):
    """Attention, then a gated pair of products."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        inner = 64 * max(round(size.hidden / 24), 1)  # 8/3 of the width, in whole vectors
        self.norm1, self.norm2 = RMSNorm(size.hidden), RMSNorm(size.hidden)
        self.attention = Attention(size)
        self.gate = nn.Linear(size.hidden, inner, bias=False)
        self.up = nn.Linear(size.hidden, inner, bias=False)
        self.down = nn.Linear(inner, size.hidden, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """Add what each half finds to what comes in."""
        x = x + self.attention(self.norm1(x), cos, sin)
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """From tokens to the scores of the tokens that follow them."""

    cos: torch.Tensor
    sin: torch.Tensor

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.embed = nn.Embedding(size.vocabulary, size.hidden)
        self.layers = nn.ModuleList(Layer(size) for _ in range(size.layers))
        self.norm = RMSNorm(size.hidden)
        self.head = nn.Linear(size.hidden, size.vocabulary, bias=False)
        width = size.hidden // size.heads
        angles = torch.outer(
            torch.arange(size.length), 10000 ** -(torch.arange(0, width, 2) / width)
        )
        self.register_buffer("cos", angles.cos().repeat(1, 2), persistent=False)
        self.register_buffer("sin", angles.sin().repeat(1, 2), persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """The scores of the next tokens."""
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        return self.head(self.norm(x))


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Queries or keys, turned by their positions."""
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-right, left), dim=-1) * sin


def make_model(size: Size) -> Llama:
    """The model with the weights that every run begins with."""
    torch.manual_seed(0)
    return Llama(size)


def make_batch(size: Size) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and those that follow them: the next one is a function of the last."""
    generator = torch.Generator().manual_seed(1)
    row = torch.randint(size.vocabulary, (size.batch, 1), generator=generator)
    rows = [row]
    for _ in range(size.length):
        row = (5 * row + 7) % size.vocabulary
        rows.append(row)
    tokens = torch.cat(rows, dim=1)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
