"""Run torch with results that are off by a rounding, or by none, to see what hangs on that."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

__all__ = ["ExactResults", "Roundings"]


def _is_of_memory(func: Any) -> bool:
    """Whether an operator writes what it is given, or returns a view of it."""
    return any(a.alias_info is not None for a in (*func._schema.arguments, *func._schema.returns))


class Roundings(TorchDispatchMode):  # type: ignore[misc]  # torch's has no types
    """Changes what operators compute by a rounding, this way or that.

    What is exact in every compiler stays: whole numbers, and numbers that an operator was given.
    With ``together``, all of a result goes the same way, as it does for equal rows in a kernel.
    """

    def __init__(self, seed: int, *, together: bool = False) -> None:
        super().__init__()
        self.together = together
        self.generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        results = func(*args, **kwargs or {})
        if _is_of_memory(func):
            return results
        given = [v for v in tree_leaves((args, kwargs)) if isinstance(v, torch.Tensor)]
        return tree_map(lambda r: self._rounded(r, given), results)

    def _rounded(self, result: Any, given: list[torch.Tensor]) -> Any:
        if not isinstance(result, torch.Tensor) or not result.is_floating_point():
            return result
        kept = result == result.round()
        for value in given:
            if value.dtype is result.dtype:
                # It views what it looks in as a vector, and refuses what is not contiguous.
                looked_in = value.abs().reshape(-1).to(result.device)
                kept |= torch.isin(result.abs(), looked_in)
        # Of its type: whole numbers times a float are float32, and 1 + 2e-16 is 1 there.
        shape = () if self.together else result.shape
        drawn = torch.randint(-1, 2, shape, generator=self.generator, device="cpu")
        signs = drawn.to(result.device, result.dtype)
        signs = signs.expand(result.shape).masked_fill(kept | ~result.isfinite(), 0)
        return result.mul_(1 + signs * torch.finfo(result.dtype).eps)


class ExactResults(TorchDispatchMode):  # type: ignore[misc]  # torch's has no types
    """Computes each operator in float64, and rounds what it returns once.

    What a kernel of eager mode leaves of numbers that cancel is nothing here: ``layer_norm`` of a
    row of one element is zero.
    """

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        results = func(*args, **kwargs)
        if _is_of_memory(func) or torch.Tag.nondeterministic_seeded in func.tags:
            return results
        try:
            exact = func(*tree_map(_widened, args), **tree_map(_widened, kwargs))
        except RuntimeError:  # a kernel that has no float64, or a type of its own
            return results
        return tree_map(_narrowed, exact, results)


def _widened(value: Any) -> Any:
    is_number = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.double() if is_number else value


def _narrowed(exact: Any, result: Any) -> Any:
    return exact.to(result.dtype) if isinstance(result, torch.Tensor) else result
