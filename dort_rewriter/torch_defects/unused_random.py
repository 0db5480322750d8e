"""Random numbers that are drawn and not read: ``F.dropout`` of what is not returned.

AOTAutograd drops what draws them, and those that are drawn later would be others than in eager
mode for a seed. A graph that also returns them is traced, and they are dropped after each call.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._C._functorch import is_functorch_wrapped_tensor

from dort_rewriter.aten import results_of
from dort_rewriter.torch_defects.defect import Defect
from dort_rewriter.torch_defects.overlapping_writes import (
    mutated_arguments,
    name_of,
    traced_value,
)

DEFECT = Defect(
    operators="dropout and all random operators",
    effect=(
        "A random operator whose result is not used is removed: later random numbers are "
        "others than in eager mode for a seed."
    ),
    seen_in=("2.8", "2.13"),
    remedy="its result is returned by Dynamo's graph, and dropped after each call",
    upstream="pytorch#151524",
)


_DRAWING = frozenset(
    {
        *("alpha_dropout", "alpha_dropout_", "bernoulli", "bernoulli_", "binomial", "cauchy_"),
        *("dropout", "dropout1d", "dropout2d", "dropout3d", "dropout_", "exponential_"),
        *("feature_alpha_dropout", "feature_dropout", "geometric_", "gumbel_softmax"),
        *("log_normal_", "multinomial", "native_dropout", "normal", "normal_", "poisson", "rand"),
        *("rand_like", "randint", "randint_like", "randn", "randn_like", "random_", "randperm"),
        *("rrelu", "rrelu_", "uniform_"),
    }
)
"""Functions and methods of torch, as Dynamo records them."""

_SOURCE = "_dynamo_source"
"""Where an argument comes from: Dynamo notes it beside the node."""


def return_unused_random(
    graph_module: torch.fx.GraphModule,
) -> tuple[torch.fx.GraphModule, int]:
    """The graph with copies of its unused random results as its last results, and how many.

    NOTE: what is drawn in place and overwritten later is dropped all the same.
    """
    drawing = _drawing(graph_module.graph)
    unused = (
        [n for n in _unused_random_nodes(graph_module.graph) if n in drawing] if drawing else []
    )
    if not unused:
        return graph_module, 0
    copied: dict[torch.fx.Node, torch.fx.Node] = {}
    graph = torch.fx.Graph()
    results = graph.graph_copy(graph_module.graph, copied)
    for node, made in copied.items():
        if (source := getattr(node, _SOURCE, None)) is not None:
            setattr(made, _SOURCE, source)
    kept = []
    for node in unused:
        with graph.inserting_after(copied[node]):
            detached = graph.call_method("detach", (copied[node],))
        with graph.inserting_after(detached):
            kept.append(graph.call_method("clone", (detached,)))
        for made in (detached, kept[-1]):
            made.meta = dict(node.meta)
    assert isinstance(results, list | tuple)
    graph.output((*results, *kept))
    extended = copy.copy(graph_module)
    extended.graph = graph
    for name, value in vars(graph_module).items():  # what Dynamo notes, and AOTAutograd reads
        vars(extended).setdefault(name, value)
    return extended, len(kept)


def without_last(run: Callable[..., Any], count: int) -> Callable[..., Any]:
    """Run a graph, and drop its last results."""
    return run if not count else lambda *args: run(*args)[:-count]


def _drawing(graph: torch.fx.Graph) -> set[torch.fx.Node]:
    """The nodes that draw a tensor of random numbers."""
    names, found = list(map(name_of, graph.nodes)), set()
    for node, name in zip(graph.nodes, names, strict=True):
        if name not in _DRAWING and not _is_seeded(node.target):
            continue
        value = traced_value(node)
        # What is wrapped is of a part of the graph that cannot return it.
        if isinstance(value, torch.Tensor) and not is_functorch_wrapped_tensor(value):
            found.add(node)
    return found


def _is_seeded(target: Any) -> bool:
    is_operator = isinstance(target, torch._ops.OpOverload)
    return is_operator and torch.Tag.nondeterministic_seeded in target.tags


def _unused_random_nodes(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    """The calls on which no result hangs, nor what is written to an argument, in order."""
    nodes = list(graph.nodes)
    read = {n for n in results_of(graph) if isinstance(n, torch.fx.Node)}
    given = {n for n in nodes if n.op in ("placeholder", "get_attr")}
    memory = {s for n in given | read for s in _storages(n)}
    unused = []
    for node in reversed(nodes):
        if node in given or node.op == "output":
            continue
        written = (s for n in mutated_arguments(node) for s in _storages(n))
        if node not in read and memory.isdisjoint(written):
            unused.append(node)
            continue
        read.update(node.all_input_nodes)
        memory.update(s for n in (node, *node.all_input_nodes) for s in _storages(n))
    return unused[::-1]


def _storages(node: Any) -> Iterator[int]:
    for value in torch.utils._pytree.tree_leaves(traced_value(node)):
        if not isinstance(value, torch.Tensor) or is_functorch_wrapped_tensor(value):
            continue
        if value.layout is torch.strided:
            yield value.untyped_storage()._cdata


def present() -> bool:
    """Whether unused random numbers are not drawn."""
    with torch.random.fork_rng(devices=[]):
        found = []
        for function in (_draw_twice, torch.compile(_draw_twice, backend="aot_eager")):
            torch.manual_seed(0)
            found.append(function(torch.ones(4)))
    return not torch.equal(*found)


def _draw_twice(x: torch.Tensor) -> torch.Tensor:
    torch.nn.functional.dropout(x)
    return torch.rand_like(x)
