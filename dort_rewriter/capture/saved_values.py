"""What a backward graph reads, and must not compute again: the partitioner is told."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Set

import torch
import torch.utils.checkpoint

from dort_rewriter.aten.aliases import lineage, results_of

__all__ = ["mark_saved"]

aten = torch.ops.aten


def mark_saved(graph: torch.fx.Graph, forward: int, updated: int) -> int:
    """Mark the values of a joint graph that its backward part reads as the forward part left them.

    Returns how many they are.

    `forward` is how many of its results are those of the forward part; so many of the first as
    are `updated` may be new values of arguments.
    A checkpoint of the user keeps its own marks, but for what would be another value.
    """
    policy = getattr(torch.utils.checkpoint, "CheckpointPolicy", None)
    if policy is None:  # torch 2.3
        return 0
    written = _copied_first(graph) | _without_gradient(graph, forward, updated)
    saved, normalized = [*_compared(graph), *_of_written(graph, written)], _normalized(graph)
    for node in saved:
        node.meta.setdefault("recompute", policy.MUST_SAVE)
    for node in normalized:
        node.meta["recompute"] = policy.MUST_SAVE
    return len({*saved, *normalized})


def _compared(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    """The numbers that the backward graph looks for.

    The gradient of a median or a maximum goes where its argument is equal to it: to nowhere, and
    is NaN, if a bit of the argument differs the second time.
    """
    found = []
    for node in graph.nodes:
        if node.target is not aten.eq.Tensor:
            continue
        for argument in node.all_input_nodes:
            value = argument.meta.get("val")
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                # NOTE: one of several results is computed again where all of them are.
                several = argument.target is operator.getitem
                found.append(argument.all_input_nodes[0] if several else argument)
    return found


def _normalized(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    """What batch norms in training gave: to compute it again, the backward graph would read the
    running statistics, which were written to meanwhile."""
    norms = [
        n for n in graph.nodes if n.target is aten._native_batch_norm_legit_functional.default
    ]
    return [kept for norm in norms for kept in (norm, *norm.users)]


def _of_written(graph: torch.fx.Graph, written: Set[torch.fx.Node]) -> list[torch.fx.Node]:
    """What was computed of arguments that are written to, as eager mode saves it: to compute it
    again, the backward graph would read the arguments, whose values are gone then."""
    if not written:
        return []
    found = []
    for node in graph.nodes:
        if node.op == "output" or lineage(node)[-1] in written:
            continue
        if not written.isdisjoint(lineage(a)[-1] for a in node.all_input_nodes):
            found += [node, *(u for u in node.users if u.target is operator.getitem)]
    return found


def _copied_first(graph: torch.fx.Graph) -> set[torch.fx.Node]:
    """The copies that a joint graph begins with.

    AOTAutograd makes them of the arguments that are written to and have a gradient; it does not
    tell partitioners which these are.
    """
    calls = (n for n in graph.nodes if n.op != "placeholder")
    copies = itertools.takewhile(lambda n: n.target is aten.clone.default, calls)
    return {n for n in copies if len(n.args[0].users) == 1 and n.args[0].op == "placeholder"}


def _without_gradient(graph: torch.fx.Graph, forward: int, updated: int) -> set[torch.fx.Node]:
    """The arguments without a gradient that are written to, if they are told from others by type
    and sizes: AOTAutograd makes no copy of them."""
    results = results_of(graph)
    values = {_kind(r) for r in results[:updated] if isinstance(r, torch.fx.Node)}
    arguments = (n for n in graph.nodes if n.op == "placeholder")
    gradients = zip(arguments, results[forward:], strict=False)  # the last are the tangents
    return {n for n, gradient in gradients if gradient is None and _kind(n) in values}


def _kind(node: torch.fx.Node) -> str:
    value = node.meta.get("val")
    return f"{value.dtype} {value.shape}" if isinstance(value, torch.Tensor) else "no tensor"
