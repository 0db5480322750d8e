"""Flat arguments and results for the graphs that have others.

The graphs of Dynamo take tensors and return a tuple of them, which AOTAutograd asks for. Those of
``torch.export`` take and return what the module did; one traced by hand may return a tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["FlatGraph", "flatten_interface", "has_tree"]


@dataclass(frozen=True)
class FlatGraph:
    """A graph that takes and returns tensors, and the way from and to what is said instead."""

    graph_module: torch.fx.GraphModule
    pack: Callable[..., Sequence[Any]]
    """From the arguments of a call to those of the graph."""
    unpack: Callable[[list[Any]], Any]
    """From the results of the graph to the result of the call."""


def has_tree(graph_module: torch.fx.GraphModule) -> bool:
    """Whether a graph takes its arguments out of structures, as those of torch.export do."""
    return isinstance(graph_module.graph._codegen, torch.fx.graph._PyTreeCodeGen)


def flatten_interface(graph_module: torch.fx.GraphModule) -> FlatGraph | None:
    """The graph with flat arguments and results; None when it has them."""
    original = graph_module.graph
    results = next(n for n in original.nodes if n.op == "output").args[0]
    leaves, spec = torch.utils._pytree.tree_flatten(results)
    if has_tree(graph_module):
        return FlatGraph(
            _copy(graph_module, leaves),
            pack=lambda *args: original.process_inputs(*args),
            unpack=original.process_outputs,
        )
    if isinstance(results, list | tuple) and len(leaves) == len(results):
        return None
    return FlatGraph(
        _copy(graph_module, leaves),
        pack=lambda *args: args,
        unpack=lambda flat: torch.utils._pytree.tree_unflatten(flat, spec),
    )


def _copy(graph_module: torch.fx.GraphModule, results: Sequence[Any]) -> torch.fx.GraphModule:
    graph = torch.fx.Graph()
    copied: dict[torch.fx.Node, torch.fx.Node] = {}
    graph.graph_copy(graph_module.graph, copied)
    graph.output(tuple(copied.get(leaf, leaf) for leaf in results))
    return torch.fx.GraphModule(graph_module, graph)
