"""Cut a graph into blocks for ONNX Runtime and what stays in torch.

Support is decided by the dispatcher, before anything is converted. Most graphs are supported as
a whole and are not touched.
"""

from __future__ import annotations

import functools
import logging
import operator
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from dort_rewriter.aten import is_mutation, is_random, owners_of, written_arguments
from dort_rewriter.errors import UnsupportedOp
from dort_rewriter.optimize.view import in_turn
from dort_rewriter.trace import passes_of

logger = logging.getLogger(__name__)

Refusal = Callable[[torch.fx.Node], UnsupportedOp | None]


@dataclass(frozen=True)
class Partition:
    """A graph whose supported parts are submodules."""

    graph_module: torch.fx.GraphModule
    blocks: tuple[str, ...]
    """The names of the submodules meant for ONNX Runtime; empty when nothing is."""
    whole: bool
    """True when the graph itself is the only block."""
    fallbacks: tuple[UnsupportedOp, ...]
    """What stays in torch, and why."""


def partition_graph(
    graph_module: torch.fx.GraphModule,
    refusal: Refusal,
    min_block_size: int,
    *,
    is_free: Callable[[torch.fx.Node], bool] = lambda _: False,
) -> Partition:
    """Cut a graph by what `refusal` refuses; blocks of fewer nodes than `min_block_size` stay.

    Nodes that are free do not count: they take as long in torch. A graph that is cut is left as it
    was: what is returned is made of a copy.
    """
    calls = [n for n in graph_module.graph.nodes if n.op not in ("placeholder", "output")]
    refused = {n: reason for n in calls if (reason := refusal(n)) is not None}
    if not refused:
        return Partition(graph_module, (), True, ())
    if _depends_on_order(graph_module.graph, calls):
        return Partition(graph_module, (), False, tuple(refused.values()))
    outside = {n.name for n in _outside(graph_module, refused)}
    fused, blocks = _fuse(copy_graph(graph_module), outside, min_block_size, is_free)
    return Partition(fused, blocks, False, tuple(refused.values()))


def _depends_on_order(graph: torch.fx.Graph, calls: Sequence[torch.fx.Node]) -> bool:
    """Whether a node reads, or writes, what another one writes.

    NOTE: nothing in the graph says which of them comes first but their order, which a graph does
    not keep when it is cut.
    """
    writes = list(filter(is_mutation, calls))
    owners = owners_of(graph) if writes else {}
    readers: dict[torch.fx.Node, set[torch.fx.Node]] = defaultdict(set)
    for node in calls if writes else ():
        for argument in node.all_input_nodes:
            readers[owners[argument]].add(node)
    return any(readers[owners[a]] != {n} for n in writes for a in written_arguments(n))


def copy_graph(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A graph with nodes of its own, of the same names and metadata."""
    graph = torch.fx.Graph()
    output = graph.output(graph.graph_copy(graph_module.graph, {}))
    output.meta = dict(next(n for n in graph_module.graph.nodes if n.op == "output").meta)
    graph.set_codegen(graph_module.graph._codegen)
    copied = torch.fx.GraphModule(graph_module, graph)
    passes_of(copied).extend(passes_of(graph_module))
    return copied


def _outside(
    graph_module: torch.fx.GraphModule, refused: Mapping[torch.fx.Node, UnsupportedOp]
) -> set[torch.fx.Node]:
    """The nodes that stay in torch, with what belongs to them.

    That is what takes a result apart, and what is no tensor: the body of a higher-order operator
    stands beside it, and moves into a block with it.
    """
    outside = set(refused)
    for node in graph_module.graph.nodes:
        if node.op == "get_attr":
            if not isinstance(_attribute(graph_module, node), torch.Tensor):
                outside.add(node)
        elif node.target is operator.getitem and node.all_input_nodes[0] in outside:
            outside.add(node)
    return outside


def _attribute(graph_module: torch.fx.GraphModule, node: torch.fx.Node) -> Any:
    return functools.reduce(getattr, str(node.target).split("."), graph_module)


def _fuse(
    graph_module: torch.fx.GraphModule,
    outside: Collection[str],
    min_block_size: int,
    is_free: Callable[[torch.fx.Node], bool],
) -> tuple[torch.fx.GraphModule, tuple[str, ...]]:
    from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
    from torch.fx.passes.operator_support import create_op_support

    order = {n.name: i for i, n in enumerate(graph_module.graph.nodes)}
    chained = _chain_in_order(graph_module.graph)
    support = create_op_support(
        lambda _, node: node.op in ("call_function", "get_attr") and node.name not in outside
    )
    partitioner = CapabilityBasedPartitioner(
        graph_module, support, allows_single_node_partition=True
    )
    proposed = partitioner.propose_partitions()
    worth = [p for p in proposed if _work(p.nodes, is_free) >= min_block_size]
    for small in proposed:
        if small not in worth:
            logger.debug("%s node(s) are too few for a session: %s", small.size(), small.nodes)
    for node in chained[1:]:
        node.args = node.args[:-1]
    places = [n.name for n in chained]
    fused = partitioner.fuse_partitions(worth)
    _return_last(fused.graph)
    blocks = [
        n
        for n in fused.graph.nodes
        if n.op == "call_module" and str(n.target).startswith("fused_")
    ]
    _keep_in_order(fused, blocks, places)
    for block in blocks:
        _move_bodies(fused, block)
        _restore_order(fused.get_submodule(str(block.target)), order)
    fused.recompile()
    return fused, tuple(str(b.target) for b in blocks)


def _chain_in_order(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    """Let each node that is random, or may do anything, wait for the one before it.

    Nothing else in a graph says which of them comes first: what one of them is in, or is read by,
    may read a later one. Each of these but the first has another as a last argument now.

    NOTE: of several results one is waited for, not the node: torch keeps results with the node
    that gives them where nothing else reads it.
    """
    calls = [n for n in graph.nodes if _keeps_its_place(n)]
    for before, node in pairwise(calls):
        taken = (n for n in before.users if n.target is operator.getitem)
        node.args = (*node.args, next(taken, before))
    return calls


def _keeps_its_place(node: torch.fx.Node) -> bool:
    """Whether it matters when a node runs, in a session too, which may call it in torch."""
    if node.op != "call_function":
        return False
    if isinstance(node.target, torch._ops.OpOverload) and node.target.namespace == "aten":
        return is_random(node)
    return has_a_place(node.target)


def _keep_in_order(
    graph_module: torch.fx.GraphModule, blocks: Sequence[torch.fx.Node], places: Sequence[str]
) -> None:
    """Let blocks and nodes stand so that what has a place among the others keeps it."""
    graph = graph_module.graph
    holders = {n.name: n for n in graph.nodes}
    for block in blocks:
        inner = graph_module.get_submodule(str(block.target))
        assert isinstance(inner, torch.fx.GraphModule)
        holders |= {n.name: block for n in inner.graph.nodes if n.op == "call_function"}
    earlier: dict[torch.fx.Node, set[torch.fx.Node]] = defaultdict(set)
    for before, after in pairwise(holders[name] for name in places):
        if before is not after:
            earlier[after].add(before)
    if not earlier:
        return
    nodes = [n for n in graph.nodes if n.op != "output"]
    output = next(n for n in reversed(graph.nodes) if n.op == "output")
    waits = {n: {*n.all_input_nodes, *earlier[n]} for n in nodes}
    place = {node: i for i, node in enumerate(nodes)}
    for node in in_turn(waits, place.__getitem__):
        output.prepend(node)


def has_a_place(target: Any) -> bool:
    """Whether it matters when an operator runs, beside what it reads and writes."""
    if isinstance(target, torch._ops.HigherOrderOperator):
        return True
    if not isinstance(target, torch._ops.OpOverload):
        return False
    return (
        target.namespace not in ("aten", "prims")
        or torch.Tag.nondeterministic_seeded in target.tags
    )


def _return_last(graph: torch.fx.Graph) -> None:
    """Let a graph return when all is done: what is never read is a write.

    NOTE: torch 2.8 sorts it behind the end.
    """
    nodes = list(graph.nodes)
    output = next(n for n in nodes if n.op == "output")
    for node in nodes[nodes.index(output) + 1 :]:
        output.prepend(node)


def _restore_order(block: torch.nn.Module, order: Mapping[str, int]) -> None:
    """Let the nodes of a block stand as they stood: some may draw random numbers.

    NOTE: torch 2.8 sorts them by what they read alone. What torch put there stands first.
    """
    assert isinstance(block, torch.fx.GraphModule)
    moved = [n for n in block.graph.nodes if n.op not in ("placeholder", "output")]
    if any(n.name not in order and n.op != "get_attr" for n in moved):
        return
    output = next(n for n in reversed(block.graph.nodes) if n.op == "output")
    for node in sorted(moved, key=lambda n: order.get(n.name, -1)):
        output.prepend(node)
    block.recompile()


def _move_bodies(graph_module: torch.fx.GraphModule, block: torch.fx.Node) -> None:
    """Give a block the submodules that its operators call, in place of arguments."""
    inner: torch.fx.GraphModule = graph_module.get_submodule(str(block.target))  # type: ignore[assignment]
    placeholders = [n for n in inner.graph.nodes if n.op == "placeholder"]
    kept = []
    for argument, placeholder in zip(block.args, placeholders, strict=True):
        if not isinstance(argument, torch.fx.Node) or argument.op != "get_attr":
            kept.append(argument)
            continue
        value = _attribute(graph_module, argument)
        if isinstance(value, torch.Tensor):
            kept.append(argument)
            continue
        name = f"body_{placeholder.name}"
        setattr(inner, name, value)
        with inner.graph.inserting_before(placeholder):
            body = inner.graph.get_attr(name)
        body.meta = dict(argument.meta)
        placeholder.replace_all_uses_with(body)
        inner.graph.erase_node(placeholder)
    if len(kept) < len(block.args):
        block.args = tuple(kept)
        inner.recompile()


def _work(nodes: Iterable[torch.fx.Node], is_free: Callable[[torch.fx.Node], bool]) -> int:
    """Count the nodes that compute something: views and sizes cost nothing in torch."""
    return sum(
        isinstance(n.meta.get("val"), torch.Tensor | list | tuple)
        and not _is_view(n)
        and not is_free(n)
        for n in nodes
    )


def most_work_together(
    nodes: Sequence[torch.fx.Node], is_free: Callable[[torch.fx.Node], bool]
) -> int:
    """The work of the largest group of nodes that read each other's results."""
    groups: dict[torch.fx.Node, list[torch.fx.Node]] = {n: [n] for n in nodes}
    for node in nodes:
        for given in node.all_input_nodes:
            if given in groups and groups[given] is not groups[node]:
                small, large = sorted((groups[given], groups[node]), key=len)
                large.extend(small)
                groups.update(dict.fromkeys(small, large))
    distinct = {id(g): g for g in groups.values()}.values()
    return max((_work(g, is_free) for g in distinct), default=0)


def _is_view(node: torch.fx.Node) -> bool:
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and target.is_view
