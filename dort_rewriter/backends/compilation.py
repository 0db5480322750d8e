"""Compile one ATen graph: cut it, and replace its blocks by what runs them.

A graph is cut when it is compiled; its blocks are exported and built at their first call, so that
a backward graph that does not run costs nothing.
"""

from __future__ import annotations

import dataclasses
import logging
import operator
from collections import Counter
from collections.abc import Collection
from typing import Any

import torch

from dort_rewriter.aten.aliases import (
    reads_by_place,
    reads_gaps,
    rebase_strided,
    results_of,
    settle_blocks,
    writes_overlapping,
)
from dort_rewriter.backends.autotune import Autotuned
from dort_rewriter.backends.building import shared_in_torch
from dort_rewriter.backends.conventions import boxed, boxed_module
from dort_rewriter.backends.lazy_block import Block
from dort_rewriter.backends.recipe import Recipe, RunBoxed
from dort_rewriter.backends.safety_net import guarded
from dort_rewriter.capture.outputs import SHARED, plan_outputs
from dort_rewriter.capture.partition import (
    Partition,
    copy_graph,
    has_a_place,
    most_work_together,
    partition_graph,
)
from dort_rewriter.capture.placement import CHECK, PLACED
from dort_rewriter.capture.randomness import draw_in_between, hoist_random
from dort_rewriter.capture.ties import TIES
from dort_rewriter.errors import UnsupportedOp, UnsupportedOpError
from dort_rewriter.export.dispatcher import RANDOM
from dort_rewriter.export.provenance import ancestors
from dort_rewriter.export.torch_calls import is_called, mark_called
from dort_rewriter.torch_defects.kernel_layouts import correct_layouts
from dort_rewriter.torch_defects.metadata import correct_records
from dort_rewriter.traced_sizes import is_contiguous

__all__ = [
    "compile_graph",
    "cut",
    "forget_what_was_told",
    "make_block",
    "settle_records",
    "tell_whole",
]

logger = logging.getLogger(__name__)


def compile_graph(graph_module: torch.fx.GraphModule, recipe: Recipe) -> RunBoxed:
    """A callable that takes the list of arguments of the graph, and empties it.

    It returns the tuple of the results, also when the graph returns a single one.
    """
    return guarded(
        lambda: _compile(graph_module, recipe),
        lambda: boxed_module(graph_module),
        graph_module,
        fallback=recipe.options.fallback,
        trace=recipe.trace,
    )


def _compile(graph_module: torch.fx.GraphModule, recipe: Recipe) -> RunBoxed:
    if recipe.options.autotune:
        return boxed(Autotuned(_candidates(graph_module, recipe)).boxed)
    partition = cut(graph_module, recipe)
    if partition.whole:
        return boxed(make_block(graph_module, recipe).boxed)
    return boxed_module(partition.graph_module)


def settle_records(graph_module: torch.fx.GraphModule, recipe: Recipe) -> None:
    """Make right what is recorded wrongly, and random operators the first ones.

    NOTE: in this order: they draw in that of the memory they fill.
    """
    correct_records(graph_module.graph)
    correct_layouts(
        graph_module.graph, hidden_copies=recipe.hidden_copies, owns_views=recipe.owns_views
    )
    hoist_random(graph_module)


def _candidates(graph_module: torch.fx.GraphModule, recipe: Recipe) -> dict[str, RunBoxed]:
    """The ways to run a graph: ONNX Runtime alone, with some operators in torch, torch."""
    options = dataclasses.replace(recipe.options, autotune=False)
    settle_records(graph_module, recipe)

    def compiled(**changes: Any) -> RunBoxed:
        changed = dataclasses.replace(recipe, options=dataclasses.replace(options, **changes))
        return compile_graph(copy_graph(graph_module), changed)

    candidates = {"ONNX Runtime": compiled(placement={"*": "onnxruntime"})}
    if any(_is_in_torch(n, recipe) for n in graph_module.graph.nodes):
        candidates["ONNX Runtime and torch"] = compiled()
    return {**candidates, "torch": boxed_module(graph_module)}


def _is_in_torch(node: torch.fx.Node, recipe: Recipe) -> bool:
    """Whether torch computes a node of a graph, outside of a session or called by one."""
    if recipe.place(node) != "onnxruntime":
        return True
    return (
        node.op == "call_function" and recipe.may_call(node) and recipe.refusal(node) is not None
    )


def cut(graph_module: torch.fx.GraphModule, recipe: Recipe) -> Partition:
    """Cut a graph, its blocks replaced by what will run them."""
    with recipe.trace.phase("cut"):
        settle_records(graph_module, recipe)
        rebase_strided(graph_module.graph)
        graph = graph_module.graph
        shared = [
            *plan_outputs(graph_module).left,
            *reads_by_place(graph),
            *reads_gaps(graph),
            *writes_overlapping(graph),
        ]
        left = {n: shared_in_torch(n) for n in shared}
        refused = {
            n: reason
            for n in graph_module.graph.nodes
            if n.op not in ("placeholder", "output")
            and (reason := left.get(n) or recipe.refusal(n)) is not None
        }
        recipe.trace.called.extend(_let_sessions_call(graph_module, recipe, refused))
        partition = partition_graph(
            graph_module, refused.get, recipe.options.min_block_size, is_free=is_called
        )
        settle_blocks(partition.graph_module, partition.blocks)
    recipe.trace.fallbacks.extend(partition.fallbacks)
    _report(partition, recipe)
    for name in partition.blocks:
        submodule = getattr(partition.graph_module, name)
        delattr(partition.graph_module, name)
        object.__setattr__(partition.graph_module, name, make_block(submodule, recipe))
    return partition


def _let_sessions_call(
    graph_module: torch.fx.GraphModule,
    recipe: Recipe,
    refused: dict[torch.fx.Node, UnsupportedOp],
) -> list[UnsupportedOp]:
    """Take the nodes that sessions can call in torch from those that are refused; return why.

    NOTE: only where the graph would be cut into sessions. One without any is faster in torch.
    """
    if not refused:
        return []
    rest = [
        n
        for n in graph_module.graph.nodes
        if n.op == "call_function" and n not in refused and not _takes_from(n, refused)
    ]
    if most_work_together(rest, is_called) < recipe.options.min_block_size:
        return []
    called = [n for n, why in refused.items() if not _belongs_in_torch(why) and recipe.may_call(n)]
    called += _draws_inside(graph_module, recipe, refused)
    for node in called:
        mark_called(node)
    told = [refused.pop(n) for n in called]
    if told:
        counts = Counter(f"{t.op} ({t.reason})" for t in told)
        names = ", ".join(f"{count} x {name}" for name, count in counts.items())
        logger.info("A session calls these operators in torch: %s", names)
    return told


def _draws_inside(
    graph_module: torch.fx.GraphModule,
    recipe: Recipe,
    refused: dict[torch.fx.Node, UnsupportedOp],
) -> list[torch.fx.Node]:
    """All draws of random numbers of a graph, if a session has to make them between its nodes.

    NOTE: all or none, each being needed: sessions keep their order, but among themselves only.
    """
    draws = [n for n, why in refused.items() if why.reason == RANDOM]
    if not draw_in_between(draws) or not all(map(recipe.may_draw, draws)):
        return []
    read = (n.meta.get("val") for draw in draws for n in draw.all_input_nodes)
    if any(isinstance(v, torch.Tensor) and not is_contiguous(v) for v in read):
        return []  # drawn in the order of their memory, which is another one in a session
    calls = (n for n in graph_module.graph.nodes if n.op == "call_function")
    if any(has_a_place(n.target) and n not in draws for n in calls):
        return []
    needed = ancestors(results_of(graph_module.graph))
    return draws if needed.issuperset(draws) else []


def _takes_from(node: torch.fx.Node, refused: Collection[torch.fx.Node]) -> bool:
    """Whether a node only takes a result of one that is refused."""
    return node.target is operator.getitem and node.args[0] in refused


def make_block(graph_module: torch.fx.GraphModule, recipe: Recipe) -> Block:
    """What runs a graph that is convertible as a whole, built if the recipe says so."""
    block = Block(graph_module, recipe, compile_graph)
    if recipe.build_now:
        block.prepare()
    return block


_ADVICE = (
    "Register a converter (Dispatcher({'aten::...': function})), or decompose them "
    "(decomposition_table=...), to run them in ONNX Runtime."
)


_told: set[str] = set()
"""Operators for which a graph was left to torch, and the log said so at WARNING."""


def forget_what_was_told() -> None:
    """Say again, at WARNING, for which operators graphs are left to torch."""
    _told.clear()


def _report(partition: Partition, recipe: Recipe) -> None:
    """Say what stays in torch, but for what belongs there.

    A graph that falls back to torch as a whole is a warning, unless others were for the same
    operators: a model whose fifty layers are graphs of one kind says it once.
    """
    missing = [f for f in partition.fallbacks if not _belongs_in_torch(f)]
    if missing and recipe.options.fallback and partition.blocks:
        listing = UnsupportedOpError(missing).listing()
        logger.info("These operators run in torch: %s\n%s", listing, _ADVICE)
    elif missing:
        tell_whole(missing, fallback=recipe.options.fallback)


def tell_whole(missing: Collection[UnsupportedOp], *, fallback: bool) -> None:
    """Say for which operators a graph runs in torch; raise it where that is not asked for."""
    if not fallback:
        raise UnsupportedOpError(missing)
    listing = UnsupportedOpError(missing).listing()
    names = {f.op for f in missing}
    level = logging.INFO if names <= _told else logging.WARNING
    _told.update(names)
    logger.log(level, "A graph runs in torch as a whole: %s\n%s", listing, _ADVICE)


def _belongs_in_torch(fallback: UnsupportedOp) -> bool:
    return fallback.reason in (CHECK, PLACED, RANDOM, SHARED, TIES)
