"""Arguments to compile for: like those of an earlier call, or a user's own under other names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from dort_rewriter.backends.seen_calls import SeenCall, TensorLike, map_values

__all__ = ["Maker", "aliases_of", "mark_as_seen", "mark_dims"]


def aliases_of(
    args: Sequence[Any], kwargs: Mapping[str, Any], *, gradients: bool = False
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The same arguments in tensors of their own: those of a user keep no mark of ours.

    With ``gradients`` they get gradients where those did.
    """
    aliases: dict[int, torch.Tensor] = {}

    def alias(tensor: torch.Tensor) -> torch.Tensor:
        wanted = gradients and tensor.requires_grad
        return aliases.setdefault(id(tensor), tensor.detach().requires_grad_(wanted))

    named = {name: map_values(value, alias) for name, value in kwargs.items()}
    return tuple(map_values(a, alias) for a in args), named


def mark_as_seen(seen: SeenCall, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Mark the dimensions of arguments that an earlier call was compiled for any size of."""
    pairs = [*zip(seen.args, args, strict=False)]
    pairs += [(value, kwargs[name]) for name, value in seen.kwargs.items() if name in kwargs]
    while pairs:
        known, given = pairs.pop()
        if isinstance(known, TensorLike):
            if isinstance(given, torch.Tensor) and given.dim() == len(known.shape):
                mark_dims(given, known.dynamic)
        elif isinstance(known, list | tuple) and isinstance(given, list | tuple):
            pairs += zip(known, given, strict=False)
        elif isinstance(known, dict) and isinstance(given, dict):
            pairs += [(known[key], given[key]) for key in known if key in given]


def mark_dims(tensor: torch.Tensor, dims: Iterable[int]) -> None:
    """Let dimensions vary; those of one element do not, in torch."""
    for dim in dims:
        if tensor.shape[dim] > 1:
            torch._dynamo.maybe_mark_dynamic(tensor, dim)


class Maker:
    """Makes tensors of descriptions: a description met twice is one tensor."""

    def __init__(self, *, gradients: bool = False) -> None:
        self.gradients = gradients
        """Whether they get gradients where those did that were described."""
        self.generator = torch.Generator().manual_seed(0)
        self.made: dict[int, tuple[TensorLike, torch.Tensor]] = {}
        """By identity; a description stays, so that no other gets its identity."""

    def call(self, seen: SeenCall) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments like those of a call."""
        named = {name: self.make(value) for name, value in seen.kwargs.items()}
        return tuple(self.make(a) for a in seen.args), named

    def make(self, value: Any) -> Any:
        """The value, tensors in place of descriptions."""
        return map_values(value, self._made_once, TensorLike)

    def _made_once(self, wanted: TensorLike) -> torch.Tensor:
        if id(wanted) not in self.made:
            self.made[id(wanted)] = (wanted, self._tensor(wanted))
        return self.made[id(wanted)][1]

    def _tensor(self, wanted: TensorLike) -> torch.Tensor:
        # NOTE: zeros and ones: whole numbers may be indices, and have to be small.
        last = [(n - 1) * s for n, s in zip(wanted.shape, wanted.stride, strict=True)]
        count = 0 if 0 in wanted.shape else 1 + sum(last)
        values = torch.randint(0, 2, (count,), generator=self.generator)
        memory = values.to(wanted.device, wanted.dtype)
        made = memory.as_strided(wanted.shape, wanted.stride)  # parts may be one: an expanded one
        mark_dims(made, wanted.dynamic)
        return made.requires_grad_(self.gradients and wanted.requires_grad)
