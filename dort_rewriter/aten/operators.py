"""What ATen operators do besides computing: random numbers, in-place mutations."""

from __future__ import annotations

import torch

__all__ = ["is_mutation", "is_random"]


def is_random(node: torch.fx.Node) -> bool:
    """Whether a node takes random numbers from the generator; attention does if it drops any."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return False
    if torch.Tag.nondeterministic_seeded not in target.tags:
        return False
    names = [a.name for a in target._schema.arguments]
    if "dropout_p" not in names:
        return True
    place = names.index("dropout_p")
    dropped = node.args[place] if place < len(node.args) else node.kwargs.get("dropout_p", 0.0)
    return bool(dropped != 0)


def is_mutation(node: torch.fx.Node) -> bool:
    """Whether an operator mutates one of its arguments."""
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable
