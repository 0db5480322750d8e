"""GraphPlan: what is decided about an ATen graph before a line of ONNX is written.

It is made once, by passes in the order of :data:`PREPARE` and :data:`DECIDE`, and then only read.
What turns out later, that a provider has no kernel for a node, makes another plan of the same
graph: :meth:`GraphPlan.without`.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from dort_rewriter.aten import (
    ancestors,
    is_contiguous,
    note_free_layouts,
    reads_by_place,
    reads_gaps,
    rebase_strided,
    results_of,
    source_line,
    writes_overlapping,
)
from dort_rewriter.errors import UnsupportedOp, working_on
from dort_rewriter.export.dispatcher import RANDOM, Dispatcher
from dort_rewriter.export.torch_calls import is_called, mark_called
from dort_rewriter.plan.nodes import (
    Chooser,
    NodePlan,
    Planned,
    plan_of,
    set_plan,
    unsupported,
)
from dort_rewriter.plan.other_numbers import OTHER_NUMBERS
from dort_rewriter.plan.outputs import SHARED, OutputPlan, plan_outputs
from dort_rewriter.plan.partition import (
    Partition,
    has_a_place,
    most_work_together,
    partition_graph,
)
from dort_rewriter.plan.placement import CHECK, PLACED, TIES
from dort_rewriter.plan.random_order import hoist_random, reads_computed_tensors
from dort_rewriter.plan.recipe import Providers, Recipe
from dort_rewriter.torch_defects.kernel_layouts import correct_layouts
from dort_rewriter.torch_defects.metadata import correct_metadata
from dort_rewriter.trace import AtenPass, PassRun, passes_of, run_passes, went_through


@dataclass(frozen=True, kw_only=True)
class GraphPlan:
    """Who computes each node of a graph, what it returns, and where it is cut."""

    graph_module: torch.fx.GraphModule
    """What runs: the graph, or a copy whose blocks are submodules."""
    recipe: Recipe
    provider: str
    """The first execution provider that sessions are to have."""
    outputs: OutputPlan
    """How the results of the graph are made."""
    whole: bool
    """Whether one session runs all of it."""
    blocks: Mapping[str, GraphPlan] = field(default_factory=dict)
    """The plans of the submodules that sessions run, by name."""
    fallbacks: tuple[UnsupportedOp, ...] = ()
    """What torch computes, and why."""
    called: tuple[UnsupportedOp, ...] = ()
    """What sessions call in torch, and why."""
    passes: tuple[PassRun, ...] = ()
    """The passes that the graph went through, those of its capture first."""
    timed: Mapping[str, float] = field(default_factory=dict)
    """The seconds of a call by each of the plans of the graph that ``autotune`` has tried: this
    one was the fastest."""

    def dispatcher(self, provider: str) -> Dispatcher:
        """What converts the nodes for a provider: as planned, if it is the one planned for."""
        if provider == self.provider:
            return Planned(Chooser(self.recipe, provider))
        return Chooser(self.recipe, provider).dispatcher

    def providers(self, args: Sequence[Any]) -> Providers:
        """The providers of a session for arguments: the one planned for, and those behind it."""
        chosen = list(self.recipe.select_providers(self.graph_module, args))
        names = [str(name) for name, _ in chosen]
        first = names.index(self.provider) if self.provider in names else 0
        return chosen[first:]

    def nodes(self) -> Iterator[tuple[torch.fx.Node, NodePlan]]:
        """Yield what computes, of the graph and its blocks, and what is decided about it."""
        for node in self.graph_module.graph.nodes:
            if (plan := plan_of(node)) is not None:
                yield node, plan
        for block in self.blocks.values():
            yield from block.nodes()

    def without(self, reasons: Mapping[str, str]) -> GraphPlan:
        """The plan of the same graph where torch computes these nodes too, by name: called out of
        a session where that joins what it would cut."""
        recipe = dataclasses.replace(self.recipe, refused={**self.recipe.refused, **reasons})
        draft = _Draft(self.graph_module, recipe, self.provider)
        draft.take_outputs(self.outputs)
        draft.called_before = frozenset(c.node for c in self.called)
        return draft.decide(DECIDE[1:])

    def __str__(self) -> str:
        lines = []
        for node, plan in self.nodes():
            how = "torch's kernel" if plan.is_kernel else plan.by
            why = "" if plan.reason is None else f": {plan.reason}"
            lines.append(f"{node.name} = {plan.op} by {how}{why}")
        lines.append(f"{len(self.blocks) or int(self.whole)} session(s) on {self.provider}")
        if self.timed:
            lines.append(describe_times(self.timed))
        return "\n".join(lines)


def describe_times(timed: Mapping[str, float]) -> str:
    """What ``autotune`` chose among plans, and their times."""
    times = ", ".join(f"{name} {seconds * 1e6:.0f} us" for name, seconds in timed.items())
    return f"{min(timed, key=timed.__getitem__)}, chosen by autotune: {times}"


class _Draft:
    """A plan in the making."""

    def __init__(self, graph_module: torch.fx.GraphModule, recipe: Recipe, provider: str) -> None:
        self.graph_module = graph_module
        self.graph: torch.fx.Graph = graph_module.graph
        self.recipe = recipe
        self.chooser = Chooser(recipe, provider)
        self.provider = provider
        self.outputs = OutputPlan((), ())
        self.refused: dict[torch.fx.Node, UnsupportedOp] = {}
        """What torch computes, in the order of the graph."""
        self.shared: frozenset[torch.fx.Node] = frozenset()
        """What results cannot be made without torch for."""
        self.called: tuple[UnsupportedOp, ...] = ()
        self.called_before: frozenset[str] = frozenset()
        """What sessions call in the plan that this one is to replace."""
        self.partition = Partition(graph_module, (), True, ())

    def take_outputs(self, outputs: OutputPlan) -> int:
        """Note how results are made, and what torch has to compute for them."""
        self.outputs = outputs
        self.shared = frozenset(
            (
                *outputs.left,
                *reads_by_place(self.graph),
                *reads_gaps(self.graph),
                *writes_overlapping(self.graph),
            )
        )
        return len(self.shared)

    def decide(self, passes: Sequence[AtenPass[_Draft]]) -> GraphPlan:
        """Decide where nodes run, and cut the graph."""
        run_passes(passes, self, passes_of(self.graph_module))
        return self.finish()

    def finish(self) -> GraphPlan:
        cut = self.partition
        blocks = {n: _plan_of_block(cut.graph_module, n, self) for n in cut.blocks}
        return GraphPlan(
            graph_module=cut.graph_module,
            recipe=self.recipe,
            provider=self.provider,
            outputs=self.outputs,
            whole=cut.whole,
            blocks=blocks,
            fallbacks=cut.fallbacks,
            called=self.called,
            passes=tuple(passes_of(self.graph_module)),
        )


def _plan_of_block(within: torch.fx.GraphModule, name: str, draft: _Draft) -> GraphPlan:
    block = within.get_submodule(name)
    assert isinstance(block, torch.fx.GraphModule)
    outputs = plan_outputs(block)
    return GraphPlan(
        graph_module=block,
        recipe=draft.recipe,
        provider=draft.provider,
        outputs=outputs,
        whole=True,
    )


def prepare(graph_module: torch.fx.GraphModule, recipe: Recipe) -> None:
    """Run the passes that make a graph what it is decided about."""
    _prepare(_Draft(graph_module, recipe, ""))


def _prepare(draft: _Draft) -> None:
    done = draft.graph_module
    passes = [p for p in PREPARE if not went_through(done, p.name)]
    run_passes(passes, draft, passes_of(done))


def plan_graph(graph_module: torch.fx.GraphModule, recipe: Recipe) -> GraphPlan:
    """Decide who computes each node of an ATen graph, and cut it where torch does."""
    with recipe.trace.phase("cut"):
        draft = _Draft(graph_module, recipe, recipe.provider_of(graph_module))
        _prepare(draft)
        return draft.decide(DECIDE)


def plan_whole(graph_module: torch.fx.GraphModule, recipe: Recipe) -> GraphPlan:
    """The plan of a graph that a session is to run as a whole, and that stays as it is."""
    draft = _Draft(graph_module, recipe, recipe.provider_of(graph_module))
    draft.outputs = plan_outputs(graph_module)
    _place_nodes(draft)
    return draft.finish()


# -- the passes ---------------------------------------------------------------------------------


def _has_strided(draft: _Draft) -> bool:
    return any(n.target is torch.ops.aten.as_strided.default for n in draft.graph.nodes)


def _correct_layouts(draft: _Draft) -> int:
    recipe = draft.recipe
    return correct_layouts(
        draft.graph, hidden_copies=recipe.hidden_copies, owns_views=recipe.owns_views
    )


def _place_nodes(draft: _Draft) -> int:
    """Decide by each node alone."""
    nodes = [n for n in draft.graph.nodes if n.op not in ("placeholder", "output")]
    for node in nodes:
        mark_called(node, called=False)
    with working_on(lambda: source_line(node)):
        for node in nodes:
            if node.op == "get_attr" or node.target is operator.getitem:
                if node in draft.shared:
                    draft.refused[node] = unsupported(node, SHARED)
                continue
            plan = draft.chooser.choose(node)
            if node in draft.shared:
                plan = NodePlan(plan.op, "torch", None, reason=SHARED)
            set_plan(node, plan)
            if plan.by == "torch":
                draft.refused[node] = unsupported(node, plan.reason or "no converter")
    return len(draft.refused)


def _call_torch(draft: _Draft) -> int:
    """Take the nodes that sessions can call in torch from those that torch computes.

    NOTE: only where the graph would be cut into sessions. One without any is faster in torch.
    """
    refused, chooser, known = draft.refused, draft.chooser, draft.called_before
    rest = [
        n
        for n in draft.graph.nodes
        if n.op == "call_function"
        and (n.name in known or not (n in refused or _takes_from(n, refused)))
    ]
    if most_work_together(rest, lambda n: n.name in known) < draft.recipe.options.min_block_size:
        return 0
    called = [n for n, w in refused.items() if not belongs_in_torch(w) and chooser.may_call(n)]
    called += _random_ops_inside(draft)
    for node in called:
        mark_called(node)
        set_plan(node, chooser.called(node, refused[node].reason))
    draft.called = tuple(refused.pop(n) for n in called)
    return len(called)


def _random_ops_inside(draft: _Draft) -> list[torch.fx.Node]:
    """All random operators of a graph, if a session has to call them between its nodes.

    NOTE: all or none, each being used: sessions keep their order, but among themselves only.
    """
    draws = [n for n, why in draft.refused.items() if why.reason == RANDOM]
    if not reads_computed_tensors(draws) or not all(map(draft.chooser.may_draw, draws)):
        return []
    read = (n.meta.get("val") for draw in draws for n in draw.all_input_nodes)
    if any(isinstance(v, torch.Tensor) and not is_contiguous(v) for v in read):
        return []  # numbers follow the order in memory, which is another one in a session
    calls = (n for n in draft.graph.nodes if n.op == "call_function")
    if any(has_a_place(n.target) and n not in draws for n in calls):
        return []
    needed = ancestors(results_of(draft.graph))
    return draws if needed.issuperset(draws) else []


def _takes_from(node: torch.fx.Node, refused: Collection[torch.fx.Node]) -> bool:
    """Whether a node only takes a result of one that is refused."""
    return node.target is operator.getitem and node.args[0] in refused


def _cut(draft: _Draft) -> int:
    draft.partition = partition_graph(
        draft.graph_module,
        draft.refused.get,
        draft.recipe.options.min_block_size,
        is_free=is_called,
    )
    note_free_layouts(draft.partition.graph_module, draft.partition.blocks)
    return len(draft.partition.blocks)


PREPARE: tuple[AtenPass[_Draft], ...] = (
    AtenPass(
        "correct_metadata",
        "Nodes have the types and sizes that kernels give, not those that torch traced.",
        lambda draft: correct_metadata(draft.graph),
    ),
    AtenPass(
        "correct_layouts",
        "Elementwise results have the strides of eager mode where a program sees them.",
        _correct_layouts,
    ),
    AtenPass(
        "hoist_random",
        "Random operators need arguments alone, where they can, in the order of the program.",
        lambda draft: hoist_random(draft.graph_module),
    ),
    AtenPass(
        "rebase_strided",
        "as_strided reads what owns the memory, not a view of it.",
        lambda draft: rebase_strided(draft.graph),
        applies=_has_strided,
    ),
)
"""What makes a graph that of eager mode: metadata, layouts, the order of random numbers."""

DECIDE: tuple[AtenPass[_Draft], ...] = (
    AtenPass(
        "plan_outputs",
        "Results are computed, or made of arguments and other results; torch makes the rest.",
        lambda draft: draft.take_outputs(plan_outputs(draft.graph_module)),
    ),
    AtenPass(
        "place_nodes",
        "Each node has who computes it, by its operator, types, sizes and the options.",
        _place_nodes,
    ),
    AtenPass(
        "call_torch",
        "Sessions call in torch what would cut them.",
        _call_torch,
        applies=lambda draft: bool(draft.refused),
    ),
    AtenPass(
        "cut",
        "What sessions compute are submodules.",
        _cut,
        applies=lambda draft: bool(draft.refused),
    ),
)
"""What decides about it. Another plan of the same graph begins behind the first of them."""


def belongs_in_torch(fallback: UnsupportedOp) -> bool:
    """Whether torch computes something for a reason that no converter would change."""
    return fallback.reason in (CHECK, PLACED, RANDOM, SHARED, TIES, *OTHER_NUMBERS)
