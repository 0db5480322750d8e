"""A graph of a compiled model as it was caught: its model, what one run was given and gave."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from dort_rewriter.deployment.steps import StepPlan
from dort_rewriter.plan.recipe import BuiltBlock, Providers

__all__ = ["Captured", "CapturedBackward", "ComputedNumber", "copy_of"]


class ComputedNumber(int):
    """An integer that the graph computes, on its way to the result of the call."""

    place: int
    """Its position among the results of the graph."""


@dataclass
class CapturedBackward:
    """The graph of the gradients of a call, its model, and what one run of it gave."""

    block: BuiltBlock
    providers: Providers
    plan: StepPlan
    gradients: list[Any] = field(default_factory=list)
    """Those of the arguments that get one, for gradients of ones."""


@dataclass
class Captured:
    """A graph, its model, and what one run of it was given and gave."""

    block: BuiltBlock
    providers: Providers
    args: list[Any]
    """The arguments of the graph, as the run got them."""
    frozen: frozenset[int]
    """Those that the model holds."""
    updates: tuple[int, ...]
    """The arguments whose new values are the last results, in their order; of a training step the
    first ones."""
    results: list[Any] = field(default_factory=list)
    """The results of the graph, as the call got them."""
    value: Any = None
    """The result of the call."""
    backward: CapturedBackward | None = None


def copy_of(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the strides of the original, whatever they are."""
    made = torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )
    return made.copy_(tensor)
