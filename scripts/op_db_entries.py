"""Entries of torch's ``op_db``: their names, and their samples as functions of tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

__all__ = ["call_of", "entry_name"]


def entry_name(entry: Any) -> str:
    """The name of an entry of op_db: ``div.no_rounding_mode``."""
    variant = entry.variant_test_name
    return f"{entry.name}.{variant}" if variant else str(entry.name)


def call_of(
    entry: Any, sample: Any, grad: bool
) -> tuple[Callable[..., list[torch.Tensor]], list[torch.Tensor]]:
    """A sample as a function of its tensors."""
    leaves, spec = tree_flatten((sample.input, sample.args, sample.kwargs))
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def call(*tensors: torch.Tensor) -> list[torch.Tensor]:
        full = list(leaves)
        for i, tensor in zip(places, tensors, strict=True):
            full[i] = tensor
        first, args, kwargs = tree_unflatten(full, spec)
        result = entry.op(first, *args, **kwargs)
        if grad:  # makes what is known up to a sign or a phase comparable
            result = sample.output_process_fn_grad(result)
        return [t for t in tree_leaves(result) if isinstance(t, torch.Tensor)]

    return call, [leaves[i] for i in places]
