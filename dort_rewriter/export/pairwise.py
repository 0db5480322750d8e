"""Distances of pairs of rows and the gradients of margin losses, for models without torch.

torch has kernels for them and no decomposition; a compiled model calls those.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


def pairwise_decompositions() -> dict[Any, Callable[..., Any]]:
    """A decomposition of every operator of this module."""
    return {
        aten._pdist_forward.default: _distances,
        aten._pdist_backward.default: _gradient_of_distances,
        aten.multi_margin_loss_backward.default: _gradient_of_margins,
        aten.multilabel_margin_loss_backward.default: _gradient_of_labels,
    }


def _pairs(x: Tensor) -> tuple[Tensor, Tensor]:
    """The rows of all pairs, the first ones and the second ones."""
    places = torch.triu_indices(x.shape[0], x.shape[0], 1)
    return places[0], places[1]


def _distances(x: Tensor, p: float = 2.0) -> Tensor:
    first, second = _pairs(x)
    return torch.linalg.vector_norm(x[first] - x[second], p, dim=-1)


def _gradient_of_distances(grad: Tensor, x: Tensor, p: float, distances: Tensor) -> Tensor:
    first, second = _pairs(x)
    apart = x[first] - x[second]
    far = distances.unsqueeze(-1)
    size = apart.abs()
    if p == 0:
        slope = torch.zeros_like(apart)
    elif p == 1:
        slope = apart.sign()
    elif p == float("inf"):
        slope = apart.sign() * (size == far)
    else:
        is_none = (far == 0) | ((apart == 0) & (p < 2))
        ratio = torch.where(is_none, 1.0, size) / torch.where(is_none, 1.0, far)
        slope = torch.where(is_none, 0.0, apart.sign() * ratio.pow(p - 1))
    share = grad.unsqueeze(-1) * slope
    return torch.zeros_like(x).index_add(0, first, share).index_add(0, second, -share)


def _gradient_of_margins(
    grad: Tensor,
    x: Tensor,
    target: Tensor,
    p: float,
    margin: float,
    weight: Tensor | None = None,
    reduction: int = 1,
) -> Tensor:
    rows = x if x.dim() == 2 else x.reshape(1, -1)
    chosen = target.reshape(-1, 1)
    is_chosen = torch.arange(rows.shape[1]) == chosen
    over = margin - rows.gather(1, chosen) + rows
    slope = torch.ones_like(over) if p == 1 else 2 * over
    if weight is not None:
        slope = slope * weight[chosen]
    slope = torch.where((over > 0) & ~is_chosen, slope / rows.shape[1], 0.0)
    slope = torch.where(is_chosen, -slope.sum(1, keepdim=True), slope)
    return _weighted(slope, grad, reduction).reshape(x.shape)


def _gradient_of_labels(
    grad: Tensor, x: Tensor, target: Tensor, reduction: int, is_target: Tensor
) -> Tensor:
    rows, labels, own = (t if t.dim() == 2 else t.reshape(1, -1) for t in (x, target, is_target))
    count = rows.shape[1]
    # Labels count until the first that is negative.
    counts = (labels < 0).cumsum(1) == 0
    chosen = torch.where(counts, labels, 0)
    over = 1 - rows.gather(1, chosen).unsqueeze(2) + rows.unsqueeze(1)
    hit = (over > 0) & counts.unsqueeze(2) & (own == 0).unsqueeze(1)
    share = hit.to(x.dtype) / count
    slope = share.sum(1).scatter_add(1, chosen, -share.sum(2))
    return _weighted(slope, grad, reduction).reshape(x.shape)


def _weighted(slope: Tensor, grad: Tensor, reduction: int) -> Tensor:
    """The slope of each row by the gradient of the loss: its mean, its sum, or each row's own."""
    if reduction == 0:
        return slope * grad.reshape(-1, 1)
    return slope * grad / (slope.shape[0] if reduction == 1 else 1)
