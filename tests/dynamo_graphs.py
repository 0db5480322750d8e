"""The graph that Dynamo records of a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["graph_of_dynamo"]


def graph_of_dynamo(function: Callable[..., Any], *args: Any) -> torch.fx.GraphModule:
    graphs: list[torch.fx.GraphModule] = []

    def keep(graph_module: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
        graphs.append(graph_module)
        return graph_module.forward

    torch._dynamo.reset()
    torch.compile(function, backend=keep, dynamic=False)(*args)
    return graphs[0]
