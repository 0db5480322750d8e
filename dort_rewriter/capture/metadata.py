"""What a graph says about its values (``meta["val"]``): read, completed, made again."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch

from dort_rewriter.errors import CaptureError
from dort_rewriter.passes import passes_of

__all__ = ["complete_metadata", "propagate", "retrace"]


def complete_metadata(graph_module: torch.fx.GraphModule, args: Sequence[Any]) -> None:
    """Give each node its value: as Dynamo noted it, or by running the graph on fake tensors.

    AOTAutograd does so for its graphs; graphs of Dynamo, or made by hand, come without.
    """
    nodes = [n for n in graph_module.graph.nodes if n.op != "output"]
    for node in nodes:
        if "val" not in node.meta and "example_value" in node.meta:
            node.meta["val"] = node.meta["example_value"]
    if any("val" not in n.meta and n.op != "get_attr" for n in nodes):
        propagate(graph_module, args)


def retrace(graph_module: torch.fx.GraphModule, args: Sequence[Any]) -> torch.fx.GraphModule:
    """A copy of a graph of ATen operators whose values are those these arguments give.

    Raises :class:`CaptureError` if the graph does not run on them.
    """
    copied = torch.fx.GraphModule(graph_module, copy.deepcopy(graph_module.graph))
    passes_of(copied).clear()
    propagate(copied, args)
    return copied


def propagate(graph_module: torch.fx.GraphModule, args: Sequence[Any]) -> None:
    """Run a graph on fake tensors, and note each value.

    Raises :class:`CaptureError` if the graph does not run on them.
    """
    from torch.fx.passes.fake_tensor_prop import FakeTensorProp

    mode = torch._guards.detect_fake_mode(args) or torch._subclasses.FakeTensorMode(
        allow_non_fake_inputs=True
    )
    try:
        FakeTensorProp(graph_module, mode).propagate(*args)
    except (RuntimeError, TypeError, ValueError) as error:
        raise CaptureError(
            f"The graph does not run on arguments {[_describe(a) for a in args]}: {error}"
        ) from error


def _describe(argument: Any) -> str:
    if isinstance(argument, torch.Tensor):
        return f"{argument.dtype}{list(argument.shape)}"
    return repr(argument)
