"""Who shares memory with whom in a graph, and which of its results anybody looks at closely.

The fake tensors of a graph share their storages as the tensors of a run will: a node is a view of
the input whose storage it has, whatever operator makes it.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from dort_rewriter.aten.layouts import is_dense, overlaps
from dort_rewriter.aten.operators import is_random
from dort_rewriter.traced_sizes import is_same_size

__all__ = [
    "exposed",
    "is_layout_free",
    "is_tracked",
    "let_layouts_vary",
    "lineage",
    "reads_by_place",
    "reads_gaps",
    "reads_storage",
    "rebase_strided",
    "results_of",
    "rewriting",
    "settle_blocks",
    "writes_overlapping",
]

aten = torch.ops.aten

LAYOUT_IS_FREE = "layout_is_free"

_READ_STORAGE = frozenset(
    {aten.as_strided.default, aten.as_strided_copy.default, aten.as_strided_scatter.default}
)
"""Operators that say where elements lie in the storage, not in the tensor."""

_WRITE_PART = frozenset(
    {
        aten.as_strided_scatter.default,
        aten.diagonal_scatter.default,
        aten.select_scatter.default,
        aten.slice_scatter.default,
    }
)
"""Operators that copy the whole storage of a tensor, and write to a part of it."""


def results_of(graph: torch.fx.Graph) -> list[Any]:
    """The leaves a graph returns: nodes, None and numbers."""
    results = next(n for n in reversed(graph.nodes) if n.op == "output").args[0]
    return list(results) if isinstance(results, list | tuple) else [results]


def lineage(node: torch.fx.Node) -> list[torch.fx.Node]:
    """A node, what it is a view of, and so on to the argument or operator that owns the memory."""
    found = [node]
    while (base := _base(found[-1])) is not None:
        found.append(base)
    return found


def exposed(graph: torch.fx.Graph) -> set[torch.fx.Node]:
    """All that shares its memory with a result through the views it is made by."""
    leaves = (leaf for leaf in results_of(graph) if isinstance(leaf, torch.fx.Node))
    return {node for leaf in leaves for node in lineage(leaf)}


def _base(node: torch.fx.Node) -> torch.fx.Node | None:
    """The input whose memory a node shows."""
    if node.op != "call_function" or not node.args or not _may_be_view(node.target):
        return None
    base = node.args[0]
    if not isinstance(base, torch.fx.Node):
        return None
    if node.target is operator.getitem and _base(base) is None:
        return None  # one of several new tensors
    mine, theirs = (set(_storages(n.meta.get("val"))) for n in (node, base))
    return base if mine and mine <= theirs else None


def rewriting(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The argument that a node is a copy of, but for the parts written, and all from the node up
    to it; nothing if it is no such copy.

    In torch the copy begins in its storage where the argument does, whatever the fake tensors say.
    """
    found = [node]
    while found[-1].target in _WRITE_PART:
        first = found[-1].args[0]
        assert isinstance(first, torch.fx.Node)
        found += lineage(first)
    return found[::-1] if found[-1].op == "placeholder" and len(found) > 1 else []


def is_tracked(node: torch.fx.Node) -> bool:
    """Whether a node is a view for autograd too: in the caller's hands, it has a base."""
    if node.target is operator.getitem:
        source = node.args[0]
        assert isinstance(source, torch.fx.Node)
        return is_tracked(source)
    assert isinstance(node.target, torch._ops.OpOverload)
    aliases = any(a.alias_info is not None for a in node.target._schema.arguments)
    return aliases and node.target is not aten.detach.default


def _may_be_view(target: Any) -> bool:
    if isinstance(target, torch._ops.OpOverload):
        return not target._schema.is_mutable
    return target is operator.getitem


def _storages(value: Any) -> Iterator[int]:
    if isinstance(value, list | tuple):
        for item in value:
            yield from _storages(item)
    elif isinstance(value, torch.Tensor) and value.layout is torch.strided:
        yield value.untyped_storage()._cdata


# -- who looks at layouts ----------------------------------------------------------------------


def let_layouts_vary(graph: torch.fx.Graph, positions: Iterable[int]) -> None:
    """Note that nobody looks at the strides and the memory of these results, only at their
    values: they need not be views of what is larger.

    A result that is also returned elsewhere stays as it is.
    """
    results, chosen = results_of(graph), set(positions)
    others = {id(r) for i, r in enumerate(results) if i not in chosen}
    for i in chosen:
        if isinstance(results[i], torch.fx.Node) and id(results[i]) not in others:
            results[i].meta[LAYOUT_IS_FREE] = True


def is_layout_free(node: torch.fx.Node) -> bool:
    """Whether only the values of a result matter."""
    return bool(node.meta.get(LAYOUT_IS_FREE))


def reads_storage(node: torch.fx.Node) -> bool:
    """Whether an operator reads its first argument by places in memory."""
    return node.target in _READ_STORAGE


def settle_blocks(graph_module: torch.fx.GraphModule, blocks: Iterable[str]) -> None:
    """Say of the results of each block of a cut graph whether anybody looks at their layouts."""
    graphs: dict[Any, torch.fx.Graph] = {}
    for name in blocks:
        block = graph_module.get_submodule(name)
        assert isinstance(block, torch.fx.GraphModule)
        graphs[name] = block.graph
    for call in reversed(graph_module.graph.nodes):  # who reads a result is settled before it
        if call.op != "call_module" or call.target not in graphs:
            continue
        graph = graphs[call.target]
        output = next(n for n in reversed(graph.nodes) if n.op == "output")
        if isinstance(output.args[0], torch.fx.Node):
            _settle(output.args[0], [call], graphs)
            continue
        for i, leaf in enumerate(output.args[0]):
            if isinstance(leaf, torch.fx.Node):
                _settle(leaf, [u for u in call.users if u.args[1] == i], graphs)


def _settle(
    leaf: torch.fx.Node, outside: Sequence[torch.fx.Node], graphs: Mapping[Any, torch.fx.Graph]
) -> None:
    """Settle a result of a block, given the nodes that stand for it outside."""
    was_free = is_layout_free(leaf)
    leaf.meta[LAYOUT_IS_FREE] = all(
        _takes_values(user, node, was_free, graphs) for node in outside for user in node.users
    )


def _takes_values(
    user: torch.fx.Node,
    node: torch.fx.Node,
    is_free: bool,
    graphs: Mapping[Any, torch.fx.Graph],
) -> bool:
    """Whether the user of a node would do with the same values in another layout."""
    if user.op == "output":
        return is_free
    if user.op == "call_module" and user.target in graphs:
        graph = graphs[user.target]
        inside = [n for n in graph.nodes if n.op == "placeholder"]
        given = {p for p, a in zip(inside, user.args, strict=True) if a is node}
        leaves = [n for n in results_of(graph) if isinstance(n, torch.fx.Node)]
        return all(is_layout_free(n) or given.isdisjoint(lineage(n)) for n in leaves)
    if reads_storage(user) or is_random(user):  # one that draws fills memory in the same order
        return False
    copied = user.target in _WRITE_PART and user.args[0] is node  # with its layout
    if copied or _base(user) is node:
        return all(_takes_values(u, user, is_layout_free(user), graphs) for u in user.users)
    return True


def reads_by_place(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    """What reads arguments by places counted from the start of their storage.

    Where in its storage an argument begins may change from call to call: no guard looks at it.
    """
    found = []
    for node in graph.nodes:
        if not reads_storage(node) or lineage(node.args[0])[-1].op != "placeholder":
            continue
        geometry = node.args[2:] if "scatter" in node.target.name() else node.args[1:]
        if [*geometry[2:], node.kwargs.get("storage_offset")][0] is not None:
            found.append(node)
    return found


def reads_gaps(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    """What reads the storage of a rewritten tensor with gaps, and what gives it that storage.

    What lies between the elements of a tensor is copied by torch with them, by no session.
    """
    found: dict[torch.fx.Node, None] = {}
    for node in graph.nodes:
        source = node
        while reads_storage(source) or source.target in _WRITE_PART:
            chain = lineage(source.args[0])
            if chain[-1].target not in _WRITE_PART or is_dense(chain[-1].meta["val"]):
                break
            found |= dict.fromkeys([source, *chain])
            source = chain[-1]
    return list(found)


def writes_overlapping(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    """What writes to a part of a tensor whose elements overlap in memory (of ``unfold``), and the
    views it is written through.

    Torch copies the memory, so that a write shows at each place of an element; no session does.
    """
    found: dict[torch.fx.Node, None] = {}
    for node in graph.nodes:
        if node.target in _WRITE_PART and overlaps(node.meta["val"]):
            found |= dict.fromkeys([node, *lineage(node.args[0])[:-1]])
    return list(found)


def _shown_as(chain: Sequence[torch.fx.Node]) -> torch.fx.Node:
    """What owns the memory of a lineage, or what autograd has in its place that shows all of it.

    ``flatten`` of what is transposed is the base of its views, though it shows what a copy made.
    """
    owner = chain[-1]
    whole = owner.meta["val"]
    for i, node in enumerate(chain):
        value = node.meta["val"]
        if any(is_tracked(n) for n in chain[i:-1]) or value.dtype is not whole.dtype:
            continue
        if is_dense(value) and is_same_size(value.numel(), whole.numel()):
            return node
    return owner


def rebase_strided(graph: torch.fx.Graph) -> int:
    """Let as_strided read what owns the memory, rather than a view of it that may show less.

    A view of an argument stays, or of a copy that torch makes of its storage: where that begins is
    known at run time only. Returns how many nodes read something else now.
    """
    changed = 0
    in_torch = set(reads_gaps(graph))
    for node in graph.nodes:
        if node.target is not aten.as_strided.default or node in in_torch:
            continue
        chain = lineage(node.args[0])
        shown, owner = chain[0], _shown_as(chain)
        offset = [*node.args[3:], node.kwargs.get("storage_offset")][0]
        if offset is None:
            offset = shown.meta["val"].storage_offset()
        known = isinstance(offset, int | torch.fx.Node)
        if owner is shown or chain[-1].op == "placeholder" or not known:
            continue
        if owner.meta["val"].dtype is shown.meta["val"].dtype:
            node.args, node.kwargs = (owner, *node.args[1:3], offset), {}
            changed += 1
    return changed
