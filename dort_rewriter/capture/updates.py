"""New values of arguments: the results of a graph whose place in memory is known.

AOTAutograd writes a graph as if nothing were ever changed, and ends it by copying the new values
of the arguments that the model changes (``copy_``). Here these copies become results, so that all
that follows has a graph without side effects: it may be run again, compared, run in torch. Who
runs it may write a new value where the old one is, and returns the argument itself; what comes
back as another tensor is copied.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from dort_rewriter.aten import is_mutation, let_layouts_vary, owners_of, results_of

aten = torch.ops.aten

UPDATES = "updated_arguments"


def is_inference(args: Sequence[Any]) -> bool:
    """Whether AOTAutograd will make no backward graph, for what can be told before.

    NOTE: not of graphs with one: its partitioner would see the copies, and so would passes over
    the joint graph.
    """
    if not torch.is_grad_enabled():
        return True
    return not any(isinstance(a, torch.Tensor) and a.requires_grad for a in args)


def take_updates(graph_module: torch.fx.GraphModule) -> tuple[int, ...]:
    """Let the copies to arguments be the last results; return which arguments they are of.

    A graph that writes elsewhere is left as it is, and there are none.
    """
    graph = graph_module.graph
    places = {n: i for i, n in enumerate(n for n in graph.nodes if n.op == "placeholder")}
    copies = [n for n in graph.nodes if n.target is aten.copy_.default]
    output = next(n for n in reversed(graph.nodes) if n.op == "output")
    if not copies or not isinstance(output.args[0], list | tuple):
        return ()
    if not all(c.args[0] in places and len(c.args) == 2 for c in copies):
        return ()
    if not _may_come_last(graph, copies):
        return ()
    updated = tuple(places[c.args[0]] for c in copies)
    if len(set(updated)) < len(updated):
        return ()
    for copy in copies:  # which some results are: they are arguments
        copy.replace_all_uses_with(copy.args[0])
    results = results_of(graph)
    output.args = ((*results, *(c.args[1] for c in copies)),)
    for copy in copies:
        graph.erase_node(copy)
    let_layouts_vary(graph, range(len(results), len(results) + len(updated)))
    output.meta[UPDATES] = updated
    graph_module.recompile()
    return updated


def updates_of(graph: torch.fx.Graph) -> dict[int, int]:
    """The last results of a graph that are new values: their places, and the arguments'."""
    output = next(n for n in reversed(graph.nodes) if n.op == "output")
    updated = output.meta.get(UPDATES, ())
    if not updated:
        return {}
    first = len(results_of(graph)) - len(updated)
    return {first + i: argument for i, argument in enumerate(updated)}


def apply_updates(
    run: Callable[[list[Any]], Any], updated: Sequence[int]
) -> Callable[[list[Any]], Any]:
    """Run a graph, and copy its last results to the arguments if they are not there already."""
    if not updated:
        return run
    pick = operator.itemgetter(*updated, updated[0])  # a tuple, of one too

    def call(args: list[Any]) -> Any:
        given = pick(args)[:-1]
        results = run(args)
        first = len(results) - len(given)
        made = results[first:]
        if not all(map(operator.is_, given, made)):  # hundreds, in a step of an optimizer
            for argument, value in zip(given, made, strict=True):
                if value is not argument:
                    argument.copy_(value)
        return results[:first]

    call._boxed_call = True  # type: ignore[attr-defined]  # read by torch
    return call


def _may_come_last(graph: torch.fx.Graph, copies: Sequence[torch.fx.Node]) -> bool:
    """Whether nothing else is written, and nothing reads what was copied, or copied to."""
    written = {c.args[0] for c in copies}
    done = set(copies)
    nodes = [n for n in graph.nodes if n.op != "output"]
    if any(is_mutation(n) for n in nodes if n not in done):
        return False
    later = (n for n in nodes[nodes.index(copies[0]) :] if n not in done)
    read = {argument for n in later for argument in n.all_input_nodes}
    owners = owners_of(graph)
    return read.isdisjoint(copies) and written.isdisjoint(owners[n] for n in read)
