"""Decompositions of random operators, which torch computes: it owns the generator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["RANDOM_DECOMPOSITIONS"]

aten = torch.ops.aten


def _native_dropout(input: torch.Tensor, p: float, train: bool | None) -> Any:
    """Draw the mask as eager does on the CPU: same seed, same mask.

    NOTE: nothing is drawn for no elements, and what has none is returned itself. The kernel of
    another device draws in its own way: it stays, and the plan of the graph parts it.
    """
    if any(isinstance(size, int) and size == 0 for size in input.shape):
        return input, torch.empty_like(input)
    if train is False or p == 0:
        return input.clone(), torch.ones_like(input, dtype=torch.bool)
    if p == 1:
        return torch.zeros_like(input), torch.zeros_like(input, dtype=torch.bool)
    if _has_a_kernel_for_both(input):
        return NotImplemented
    keep = 1.0 - p
    mask = aten.bernoulli.p(torch.empty_like(input, dtype=torch.bool), keep)
    return input * mask * (1.0 / keep), mask


def _has_a_kernel_for_both(input: torch.Tensor) -> bool:
    """Whether one kernel draws a mask and multiplies by it, which on the CPU are two."""
    return input.device.type == "cuda"


RANDOM_DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten.native_dropout.default: _native_dropout,
}
"""Decompositions that keep the draw apart from the arithmetic."""
