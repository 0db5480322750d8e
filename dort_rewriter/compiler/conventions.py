"""The ways to call what runs a graph: with the list of its arguments, or with the arguments.

Inside, a list is given, and emptied: what nobody else holds is freed early. It results in a tuple.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from dort_rewriter.plan.recipe import RunBoxed

__all__ = ["boxed", "boxed_module", "returns_tuple", "unboxed"]


def boxed(function: RunBoxed) -> RunBoxed:
    """A function of torch's convention for lists of arguments."""

    def call(args: list[Any]) -> Any:
        return function(args)

    call._boxed_call = True  # type: ignore[attr-defined]  # read by torch
    return call


def boxed_module(graph_module: torch.fx.GraphModule) -> RunBoxed:
    """What runs a graph in torch, and gives a tuple as sessions do."""
    forward = graph_module.forward
    is_tuple = returns_tuple(graph_module)

    def call(args: list[Any]) -> Any:
        given = tuple(args)
        args.clear()
        results = forward(*given)
        return results if is_tuple else (results,)

    return boxed(call)


def unboxed(run: RunBoxed, graph_module: torch.fx.GraphModule) -> Callable[..., Any]:
    """A callable that takes the arguments, or the list of them, and gives what the graph does.

    No argument of a graph is a list: there is no doubt about which was meant.
    """
    is_tuple = returns_tuple(graph_module)

    def call(*args: Any) -> Any:
        is_list = len(args) == 1 and isinstance(args[0], list)
        results = run(args[0] if is_list else list(args))
        return results if is_tuple else results[0]

    call._boxed_call = True  # type: ignore[attr-defined]  # read by torch
    return call


def returns_tuple(graph_module: torch.fx.GraphModule) -> bool:
    """Whether a graph gives a tuple, rather than a result alone."""
    output = next(n for n in graph_module.graph.nodes if n.op == "output")
    return isinstance(output.args[0], list | tuple)
