"""Recommenders in plain torch: tables of items, crossed and ranked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from zoo_plain import Apply, Built

__all__ = ["RECOMMENDERS"]


def items(batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(0, 30, (4 * batch, 5)), torch.randn(4 * batch, 4)


def factorization_machine() -> Built:
    def run(m: Any, at: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        v = m.table(at)
        pairs = 0.5 * (v.sum(1) ** 2 - (v * v).sum(1)).sum(-1)
        return torch.sigmoid(pairs + m.linear(at).sum((1, 2)) + m.dense(x)[:, 0])

    return Apply(run, table=nn.Embedding(30, 8), linear=nn.Embedding(30, 1),
                 dense=nn.Linear(4, 1)), items  # fmt: skip


def dlrm() -> Built:
    def run(m: Any, at: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        bags = torch.stack([bag(at) for bag in m.bags] + [m.dense(x)], 1)
        rows, columns = torch.tril_indices(4, 4, -1)
        cross = (bags @ bags.mT)[:, rows, columns]
        return m.top(torch.cat([cross, bags[:, -1]], 1))

    bags = nn.ModuleList([nn.EmbeddingBag(30, 8, mode="sum") for _ in range(3)])
    return Apply(run, bags=bags, dense=nn.Linear(4, 8), top=nn.Linear(14, 1)), items


def deep_cross() -> Built:
    def run(m: Any, at: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        first = h = torch.cat([m.table(at).flatten(1), x], 1)
        for layer in m.layers:
            h = first * layer(h) + h
        return m.top(h)

    layers = nn.ModuleList([nn.Linear(44, 44) for _ in range(2)])
    return Apply(run, table=nn.Embedding(30, 8), layers=layers, top=nn.Linear(44, 1)), items


def two_towers() -> Built:
    def run(m: Any, at: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        a, b = F.normalize(m.table(at).mean(1), dim=-1), F.normalize(m.dense(x), dim=-1)
        logits = a @ b.T / 0.1
        return F.cross_entropy(logits, torch.arange(at.shape[0]))

    return Apply(run, table=nn.Embedding(30, 8), dense=nn.Linear(4, 8)), items


def sampled_ranking() -> Built:
    def run(m: Any, at: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        score = torch.einsum("bk,bik->bi", m.dense(x), m.table(at))
        return -F.logsigmoid(score[:, :1] - score[:, 1:]).mean(), score.argsort(-1, stable=True)

    return Apply(run, table=nn.Embedding(30, 8, padding_idx=0), dense=nn.Linear(4, 8)), items


RECOMMENDERS: dict[str, Callable[[], Built]] = {
    "factorization machine": factorization_machine,
    "DLRM": dlrm,
    "deep and cross": deep_cross,
    "two towers": two_towers,
    "pairwise ranking": sampled_ranking,
}
