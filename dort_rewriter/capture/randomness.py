"""Random operators stay in torch, and run before everything else.

Random numbers of ONNX Runtime do not follow ``torch.manual_seed``. A random operator that takes a
tensor for its shape only (``rand_like``) would cut the graph in two; rewritten to take sizes, it
depends on the arguments alone, and its numbers enter the graph as inputs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from dort_rewriter.capture.layouts import storage_order
from dort_rewriter.signature import inverse_order
from dort_rewriter.traced_sizes import is_contiguous

__all__ = ["RANDOM_DECOMPOSITIONS", "draw_in_between", "hoist_random"]

aten = torch.ops.aten


def _native_dropout(
    input: torch.Tensor, p: float, train: bool | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw the mask as eager does on the CPU: same seed, same mask."""
    if train is False or p == 0:
        return input.clone(), torch.ones_like(input, dtype=torch.bool)
    if p == 1:
        return torch.zeros_like(input), torch.zeros_like(input, dtype=torch.bool)
    keep = 1.0 - p
    mask = _filled(torch.empty_like(input, dtype=torch.bool), keep)
    return input * mask * (1.0 / keep), mask


def _filled(mask: torch.Tensor, keep: float) -> torch.Tensor:
    """A mask as ``bernoulli_`` fills it, of which the functional form knows the sizes alone."""
    order = storage_order(mask)
    if order is None or not _follows_memory():
        return aten.bernoulli.p(mask, keep)
    return aten.bernoulli.p(mask.permute(order), keep).permute(inverse_order(order))


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


RANDOM_DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten.native_dropout.default: _native_dropout,
}
"""Decompositions that keep the draw apart from the arithmetic."""

_SIZED: dict[Any, Any] = {
    aten.rand_like.default: aten.rand.default,
    aten.randn_like.default: aten.randn.default,
}


def hoist_random(graph_module: torch.fx.GraphModule) -> None:
    """Make random operators depend on the arguments of the graph alone, where they can."""
    graph = graph_module.graph
    sizes = _symbols(graph)
    changed = False
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        if node.target in _SIZED:
            changed |= _draw_by_size(graph, node, sizes)
        elif node.target is aten.bernoulli.p:
            draw = _follow_memory(graph, node) or node
            changed |= draw is not node
            changed |= _allocate_by_size(graph, draw.args[0], sizes)
    if changed:
        graph.eliminate_dead_code()
        graph_module.recompile()


def draw_in_between(draws: Collection[torch.fx.Node]) -> bool:
    """Tell whether a draw reads what is computed of tensors, so that a graph is cut there."""
    seen: set[torch.fx.Node] = set()
    waiting = [n for draw in draws for n in draw.all_input_nodes]
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if node not in draws and any(_is_tensor(n) for n in node.all_input_nodes):
            return True
        waiting.extend(node.all_input_nodes)
    return False


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


def _replace(graph: torch.fx.Graph, node: torch.fx.Node, target: Any, *args: Any) -> bool:
    value = node.meta["val"]
    with graph.inserting_before(node):
        new = graph.call_function(target, args, {"dtype": value.dtype, "device": value.device})
    new.meta = dict(node.meta)
    node.replace_all_uses_with(new)
    graph.erase_node(node)
    return True


def _draw_by_size(
    graph: torch.fx.Graph, node: torch.fx.Node, sizes: dict[str, torch.fx.Node]
) -> bool:
    shape = _size_arguments(node.meta["val"].shape, sizes)
    if shape is None or not is_contiguous(node.meta["val"]):
        return False
    return _replace(graph, node, _SIZED[node.target], shape)


def _follow_memory(graph: torch.fx.Graph, node: torch.fx.Node) -> torch.fx.Node | None:
    """Fill new memory in its order, as the ``bernoulli_`` did that is a function in the graph.

    NOTE: ``torch.bernoulli`` of other tensors, which is the same function, heeds sizes alone.
    """
    made = node.args[0]
    assert isinstance(made, torch.fx.Node)
    if made.target is not aten.empty_like.default:
        return None
    order = storage_order(made.meta["val"])
    if order is None or not _follows_memory():
        return None
    back = inverse_order(order)
    with graph.inserting_before(node):
        rows = graph.call_function(aten.permute.default, (made, list(order)))
        rows.meta["val"] = made.meta["val"].permute(order)
        drawn = graph.call_function(aten.bernoulli.p, (rows, *node.args[1:]), node.kwargs)
        drawn.meta = {**node.meta, "val": torch.empty_like(rows.meta["val"])}
        laid = graph.call_function(aten.permute.default, (drawn, list(back)))
        laid.meta["val"] = drawn.meta["val"].permute(back)
    node.replace_all_uses_with(laid)
    graph.erase_node(node)
    return drawn


def _allocate_by_size(graph: torch.fx.Graph, node: Any, sizes: dict[str, torch.fx.Node]) -> bool:
    """Rewrite the ``empty_like`` under a ``bernoulli`` that only gives it a shape."""
    made = node.args[0] if node.target is aten.permute.default else node
    if made.op != "call_function" or made.target is not aten.empty_like.default:
        return False
    shape = _size_arguments(node.meta["val"].shape, sizes)
    if shape is None or not is_contiguous(node.meta["val"]):
        return False
    return _replace(graph, node, aten.empty.memory_format, shape)
