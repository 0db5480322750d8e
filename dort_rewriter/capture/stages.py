"""What AOTAutograd hands to compilers: graphs of forward and backward passes, of inference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch

__all__ = ["Finish", "Traced", "metadata_of_compilation"]


@dataclass(frozen=True)
class Traced:
    """What is known of a graph of AOTAutograd besides its nodes."""

    kind: Literal["forward", "backward", "inference"]
    updated: tuple[int, ...] = ()
    """The arguments whose new values are its last results."""
    weights: frozenset[str] = frozenset()
    """The names of its placeholders that are weights."""


Finish: TypeAlias = Callable[[torch.fx.GraphModule, Sequence[Any], Traced], Callable[..., Any]]
"""Compiles a graph that is prepared, given examples of its arguments."""


def metadata_of_compilation() -> Any:
    """What AOTAutograd knows of the graph under compilation; None where there is none."""
    context = torch._guards.TracingContext.try_get()
    return None if context is None else context.fw_metadata
