"""A training step of two graphs: one computes results, the other gradients of what was given.

The forward graph gives the new values of arguments, the results of the call, what the backward
graph needs of it; that takes those and the gradients of results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dort_rewriter.errors import DortError, ExecutionError
from dort_rewriter.runtime.executor import Executor
from dort_rewriter.signature import inverse_order


def write_back(arguments: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    """Copy new values to the arguments that a session has not written to already."""
    for argument, value in zip(arguments, values, strict=True):
        if value is not argument:
            argument.copy_(value)


def gradients_of_ones(
    results: Sequence[torch.Tensor], arguments: Sequence[torch.Tensor]
) -> list[torch.Tensor | None]:
    """The gradients of arguments for gradients of ones of results: to compare two runs by."""
    ones = [torch.ones_like(r) for r in results]
    return list(torch.autograd.grad(results, arguments, ones, allow_unused=True))


@dataclass(frozen=True)
class StepPlan:
    """Which result of a forward graph is what, and what its backward graph takes."""

    updates: tuple[int, ...]
    """The arguments whose new values are the first results."""
    results: int
    """How many results of the call follow."""
    numbers: int
    """How many sizes are the last of what the backward graph needs, which are results too."""
    derived: tuple[int, ...]
    """The results of the call whose gradients the backward graph takes."""
    orders: tuple[tuple[int, ...], ...]
    """The layout of each of those: its dimensions, from the slowest to the fastest."""
    wanted: tuple[int, ...]
    """The arguments of the forward graph that get a gradient."""


class Step:
    """Calls the two graphs where autograd wants them."""

    def __init__(self, plan: StepPlan, forward: Executor, backward: Executor) -> None:
        self.plan = plan
        self.forward = forward
        self.backward = backward

    def __call__(self, args: Sequence[Any]) -> list[Any]:
        """The results of the call for arguments of the forward graph; those that it changes are
        written to."""
        apply: Any = _TwoGraphs.apply
        return list(apply(self, *args))


class _TwoGraphs(torch.autograd.Function):
    """A step, for autograd."""

    @staticmethod
    def forward(ctx: Any, step: Step, *args: Any) -> tuple[Any, ...]:
        plan = step.plan
        made = list(step.forward.boxed(list(args)))
        first, behind = len(plan.updates), len(plan.updates) + plan.results
        results, needed = made[first:behind], made[behind:]
        end = len(needed) - plan.numbers
        updated = [args[i] for i in plan.updates]
        # The backward graph needs the value of before.
        kept = [t.clone() if any(t is u for u in updated) else t for t in needed[:end]]
        write_back(updated, made[:first])
        ctx.step, ctx.numbers = step, needed[end:]
        ctx.shapes = [getattr(argument, "shape", None) for argument in args]
        ctx.save_for_backward(*kept)
        ctx.mark_non_differentiable(
            *(
                r
                for i, r in enumerate(results)
                if isinstance(r, torch.Tensor) and i not in plan.derived
            )
        )
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        plan = ctx.step.plan
        with torch.no_grad():
            # Dense, with its dimensions in the order of the plan.
            given = [
                gradients[i].permute(order).contiguous().permute(inverse_order(order))
                for i, order in zip(plan.derived, plan.orders, strict=True)
            ]
            needed = ctx.saved_tensors
            try:
                results = ctx.step.backward.boxed([*ctx.numbers, *needed, *given])
            except (DortError, torch.cuda.OutOfMemoryError):
                raise
            except (LookupError, RuntimeError, TypeError, ValueError) as error:
                raise ExecutionError(f"The gradients cannot be computed: {error}.") from error
        for i, (made, shape) in enumerate(zip(results, ctx.shapes, strict=True)):
            if made is not None and made.shape != shape:
                raise ExecutionError(f"The gradient of argument {i} is of shape {[*made.shape]}.")
        if torch.is_grad_enabled():  # somebody is going to derive them
            apply: Any = _DerivedOnce.apply
            results = apply(torch.empty(0, requires_grad=True), *results)
        return (None, *results)


class _DerivedOnce(torch.autograd.Function):
    """Gradients that have none themselves: who asks for one gets an error, not zeros."""

    @staticmethod
    def forward(ctx: Any, _: torch.Tensor, *gradients: Any) -> tuple[Any, ...]:
        return gradients

    @staticmethod
    def backward(ctx: Any, *_: Any) -> None:
        raise ExecutionError(
            "The gradients of a saved training step have no gradients themselves."
        )
