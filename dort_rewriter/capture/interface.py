"""The graphs that AOTAutograd takes and hands on: flat, a value for each node, of three kinds.

The graphs of Dynamo take tensors and return a tuple of them, which AOTAutograd asks for. Those of
``torch.export`` take and return what the module did; one traced by hand may return a tensor. What
a graph says about its values (``meta["val"]``) is read, completed, recomputed here.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch

from dort_rewriter.errors import CaptureError
from dort_rewriter.trace import passes_of


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


@dataclass(frozen=True)
class FlatGraph:
    """A graph that takes and returns tensors, and the way from and to what is said instead."""

    graph_module: torch.fx.GraphModule
    pack: Callable[..., Sequence[Any]]
    """From the arguments of a call to those of the graph."""
    unpack: Callable[[list[Any]], Any]
    """From the results of the graph to the result of the call."""

    def around(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """What runs the graph, called as it was before."""
        return lambda *given: self.unpack(list(run(*self.pack(*given))))


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
