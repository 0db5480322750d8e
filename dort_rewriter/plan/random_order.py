"""Random operators stay in torch, and run before everything else.

Random numbers of ONNX Runtime do not follow ``torch.manual_seed``. A random operator that takes a
tensor for its shape only (``rand_like``) would cut the graph in two; rewritten to take sizes, it
depends on the arguments alone, and its numbers enter the graph as inputs.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Collection
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from dort_rewriter.aten import (
    ancestors,
    is_contiguous,
    is_random,
    results_of,
    storage_order,
)
from dort_rewriter.signature import inverse_order

aten = torch.ops.aten


@functools.cache
def _follows_memory() -> bool:
    """Whether ``bernoulli_`` fills a tensor in the order of its memory.

    NOTE: torch has several kernels for it and takes one by the processor, so that it is asked.
    """
    with _disable_current_modes():
        rows, columns = (
            mask.bernoulli_(0.5, generator=torch.Generator().manual_seed(0))
            for mask in (torch.empty(64, 2), torch.empty(2, 64).t())
        )
        return not torch.equal(rows, columns)


_SIZED: dict[Any, Any] = {
    aten.rand_like.default: aten.rand.default,
    aten.randn_like.default: aten.randn.default,
}


def hoist_random(graph_module: torch.fx.GraphModule) -> int:
    """Make random operators depend on the arguments of the graph alone, where they can.

    Returns how many of them changed.
    """
    graph = graph_module.graph
    dropouts = [n for n in graph.nodes if n.target is aten.native_dropout.default]
    flips = [n for n in graph.nodes if n.target is aten.bernoulli.p]
    changed = sum(_part_dropout(graph, node) for node in dropouts)
    changed += sum(_follow_memory(graph, node) for node in flips)
    sizes = _symbols(graph)
    made = {}
    for node in graph.nodes:
        target, source = _SIZED.get(node.target), node
        if node.target in (aten.bernoulli.p, aten.native_dropout.default):
            target, source = aten.empty.memory_format, node.args[0]
        if target is None or (source is not node and not _is_empty(source)):
            continue
        shape = _size_arguments(source.meta["val"].shape, sizes)
        if shape is not None and is_contiguous(source.meta["val"]):
            made[source] = (target, shape)
    for node in _with_all_random_ops(graph, made):
        _replace(graph, node, *made[node])
        changed += 1
    if changed:
        graph.eliminate_dead_code()
        graph_module.recompile()
    return changed


def _with_all_random_ops(
    graph: torch.fx.Graph, made: Collection[torch.fx.Node]
) -> list[torch.fx.Node]:
    """Those of the nodes that need no more than sizes, whose removal loses no random operator.

    One whose result is used for its sizes alone still runs: the numbers after it would differ.
    """
    if not made:
        return []
    results = results_of(graph)
    lost = set(filter(is_random, ancestors(results))) - ancestors(results, made)
    return [n for n in made if not lost or not lost & (ancestors([n]) - {n})]


def reads_computed_tensors(draws: Collection[torch.fx.Node]) -> bool:
    """Whether one of the random operators reads what is computed from tensors: the graph would be
    cut there."""
    read = ancestors(n for draw in draws for n in draw.all_input_nodes).difference(draws)
    return any(_is_tensor(n) for node in read for n in node.all_input_nodes)


def _is_tensor(node: torch.fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def _symbols(graph: torch.fx.Graph) -> dict[str, torch.fx.Node]:
    """The arguments that are symbolic integers, by symbol."""
    return {
        str(value.node.expr): node
        for node in graph.nodes
        if node.op == "placeholder" and isinstance(value := node.meta.get("val"), torch.SymInt)
    }


def _size_arguments(shape: Any, sizes: dict[str, torch.fx.Node]) -> list[Any] | None:
    known = [d if isinstance(d, int) else sizes.get(str(d.node.expr)) for d in shape]
    return None if any(d is None for d in known) else known


def _replace(graph: torch.fx.Graph, node: torch.fx.Node, target: Any, shape: list[Any]) -> None:
    value = node.meta["val"]
    with graph.inserting_before(node):
        new = graph.call_function(target, (shape,), {"dtype": value.dtype, "device": value.device})
    new.meta = dict(node.meta)
    node.replace_all_uses_with(new)
    graph.erase_node(node)


def _part_dropout(graph: torch.fx.Graph, node: torch.fx.Node) -> bool:
    """Take the mask of a dropout of memory that is never read, and multiply by it.

    NOTE: the kernel's random numbers depend on the sizes, the type and the layout of its argument.
    """
    given, share, train = node.args
    assert isinstance(given, torch.fx.Node)
    if train is False or not isinstance(share, float) or not 0 < share < 1:
        return False
    value = given.meta["val"]
    dropped, kept = node.meta["val"]
    with graph.inserting_before(node):
        room = graph.call_function(aten.empty_like.default, (given,))
        room.meta["val"] = torch.empty_like(value)
        drawn = graph.call_function(aten.native_dropout.default, (room, share, True))
        drawn.meta = dict(node.meta)
        mask = graph.call_function(operator.getitem, (drawn, 1))
        masked = graph.call_function(aten.mul.Tensor, (given, mask))
        scaled = graph.call_function(aten.mul.Tensor, (masked, 1.0 / (1.0 - share)))
        for made, meta in ((mask, kept), (masked, torch.empty_like(dropped)), (scaled, dropped)):
            made.meta = {**node.meta, "val": meta}  # fake tensors of one memory are views
    for user in tuple(node.users):
        user.replace_all_uses_with(mask if user.args[1] == 1 else scaled)
        graph.erase_node(user)
    graph.erase_node(node)
    return True


def _follow_memory(graph: torch.fx.Graph, node: torch.fx.Node) -> bool:
    """Fill new memory in its order, as the ``bernoulli_`` did that is a function in the graph.

    NOTE: ``torch.bernoulli`` of other tensors, which is the same function, heeds sizes alone. What
    AOTAutograd recorded of it is row-major, and so are the views that it made of it.
    """
    made = node.args[0]
    assert isinstance(made, torch.fx.Node)
    if made.target is not aten.empty_like.default:
        return False
    order = storage_order(made.meta["val"])
    if order is None or not _follows_memory():
        return False
    back = inverse_order(order)
    with graph.inserting_before(node):
        rows = graph.call_function(aten.permute.default, (made, list(order)))
        rows.meta["val"] = made.meta["val"].permute(order)
        drawn = graph.call_function(aten.bernoulli.p, (rows, *node.args[1:]), node.kwargs)
        drawn.meta = {**node.meta, "val": torch.empty_like(rows.meta["val"])}
        laid = graph.call_function(aten.permute.default, (drawn, list(back)))
        laid.meta["val"] = drawn.meta["val"].permute(back)
        rows_again: dict[str, Any] = {"memory_format": torch.contiguous_format}
        new = graph.call_function(aten.clone.default, (laid,), rows_again)
        new.meta = dict(node.meta)
    node.replace_all_uses_with(new)
    graph.erase_node(node)
    return True


def _is_empty(node: torch.fx.Node) -> bool:
    """Whether a node is the new memory that a ``bernoulli`` fills: it gives a shape only."""
    made = node.args[0] if node.target is aten.permute.default else node
    assert isinstance(made, torch.fx.Node)
    return made.target is aten.empty_like.default
