"""Names of a model's inputs and outputs: a convention for readers, nothing relies on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

__all__ = ["create_input_names", "create_output_names"]


def create_input_names(graph_module: torch.fx.GraphModule, args: Sequence[Any] = ()) -> list[str]:
    """Return a name for each placeholder: ``input0`` for a tensor, ``input_dim_1`` for an integer.

    An argument in `args`, when there is one, decides before the metadata of the placeholder.
    """
    placeholders = [n for n in graph_module.graph.nodes if n.op == "placeholder"]
    values = [
        args[i] if i < len(args) else node.meta.get("val", node.meta.get("example_value"))
        for i, node in enumerate(placeholders)
    ]
    return [
        f"input_dim_{i}" if _is_integer(value) else f"input{i}" for i, value in enumerate(values)
    ]


def create_output_names(values: Sequence[Any]) -> list[str]:
    """Return a name for each result: ``output_0``, ``output_dim_1`` (int), ``output_NONE_2``."""
    return [
        f"output_NONE_{i}"
        if value is None
        else f"output_dim_{i}"
        if _is_integer(value)
        else f"output_{i}"
        for i, value in enumerate(values)
    ]


def _is_integer(value: Any) -> bool:
    return isinstance(value, int | torch.SymInt) and not isinstance(value, bool)
