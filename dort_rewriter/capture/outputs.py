"""Decide what of a graph's results has to be computed, and what is only looked at differently.

A result that is an argument, another result, a view of either, a constant or a size is made by
the executor in torch, at no cost. A computed result whose torch layout is not row-major is asked
for in the order it is stored in, and permuted back by a view. Where all sizes are known the views
between what is computed and what is returned are one: each costs microseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dort_rewriter.capture.layouts import is_dense, storage_order, strided_view
from dort_rewriter.capture.sizes import as_size
from dort_rewriter.signature import OutputSlot, ViewStep, describe_value, inverse_order

__all__ = ["ModelOutput", "OutputPlan", "plan_outputs"]

aten = torch.ops.aten

_SAME_ELEMENTS = frozenset(
    {
        aten.view.default,
        aten._unsafe_view.default,
        aten.permute.default,
        aten.t.default,
        aten.transpose.int,
        aten.unsqueeze.default,
        aten.squeeze.dim,
        aten.squeeze.dims,
        aten.squeeze.default,
        aten.expand.default,
        aten.alias.default,
        aten.detach.default,
        torch.ops.prims.view_of.default,
    }
)
"""Views that show every element of their base: returning the base costs no memory."""

_SOME_ELEMENTS = frozenset({aten.slice.Tensor, aten.select.int, aten.diagonal.default})
"""Views that show a part of their base: taken only of what is kept anyway."""


@dataclass(frozen=True)
class ModelOutput:
    """A result that ONNX Runtime computes."""

    node: torch.fx.Node
    order: tuple[int, ...] | None = None
    """A permutation to apply before it is returned; None for none."""


@dataclass(frozen=True)
class OutputPlan:
    """What the model computes, and how the results of the graph are made of it."""

    model_outputs: tuple[ModelOutput, ...]
    slots: tuple[OutputSlot, ...]


@dataclass(frozen=True)
class _View:
    base: torch.fx.Node
    steps: tuple[ViewStep, ...]


def plan_outputs(graph_module: torch.fx.GraphModule) -> OutputPlan:
    """Plan the results of an ATen graph whose nodes carry ``meta["val"]``."""
    graph = graph_module.graph
    arguments = {n: i for i, n in enumerate(n for n in graph.nodes if n.op == "placeholder")}
    output = next(n for n in graph.nodes if n.op == "output")
    results = output.args[0]
    leaves = list(results) if isinstance(results, list | tuple) else [results]
    return _Planner(arguments, leaves).plan()


class _Planner:
    def __init__(self, arguments: dict[torch.fx.Node, int], leaves: Sequence[Any]) -> None:
        self.arguments = arguments
        self.leaves = leaves
        self.first: dict[torch.fx.Node, int] = {}
        """Where each node is returned first."""
        self.computed: dict[torch.fx.Node, int] = {}
        """The position of each node among the outputs of the model."""
        self.outputs: list[ModelOutput] = []

    def plan(self) -> OutputPlan:
        slots = []
        for i, leaf in enumerate(self.leaves):
            slots.append(self._slot(leaf))
            if isinstance(leaf, torch.fx.Node):
                self.first.setdefault(leaf, i)
        return OutputPlan(tuple(self.outputs), tuple(slots))

    def _slot(self, leaf: Any) -> OutputSlot:
        if not isinstance(leaf, torch.fx.Node):
            return OutputSlot(**describe_value(leaf), source="constant", value=leaf)
        value = leaf.meta.get("val")
        described = describe_value(value)
        if value is None:
            return OutputSlot(**described, source="constant")
        if leaf in self.first:
            return OutputSlot(**described, source="output", index=self.first[leaf])
        if leaf in self.arguments:
            return OutputSlot(**described, source="input", index=self.arguments[leaf])
        if not isinstance(value, torch.Tensor):
            size = as_size(leaf, self.arguments) if isinstance(value, torch.SymInt | int) else None
            if size is not None:
                return OutputSlot(**described, source="size", size=size)
            return self._model_slot(leaf, value, (), described)
        view = self._view(leaf)
        if view.base in self.arguments:
            at = self.arguments[view.base]
            return OutputSlot(**described, source="input", index=at, views=view.steps)
        if view.steps and view.base in self.first:
            at = self.first[view.base]
            return OutputSlot(**described, source="output", index=at, views=view.steps)
        return self._model_slot(view.base, value, view.steps, described)

    def _model_slot(
        self,
        node: torch.fx.Node,
        value: Any,
        steps: tuple[ViewStep, ...],
        described: dict[str, Any],
    ) -> OutputSlot:
        order = storage_order(node.meta.get("val"))
        if node not in self.computed:
            self.computed[node] = len(self.outputs)
            self.outputs.append(ModelOutput(node, order))
        if order is not None:
            steps = (ViewStep("aten::permute", (inverse_order(order),)), *steps)
        if steps:
            known = strided_view(node.meta.get("val"), value)
            steps = steps if known is None else known
        return OutputSlot(**described, source="model", index=self.computed[node], views=steps)

    def _view(self, node: torch.fx.Node) -> _View:
        """Follow a result to what it is a view of, as far as a view costs nothing."""
        steps: list[ViewStep] = []
        found = _View(node, ())
        partial = False
        while (step := self._step(node)) is not None:
            steps.insert(0, step)
            partial = partial or node.target in _SOME_ELEMENTS
            node = node.all_input_nodes[0]
            kept = node in self.arguments or node in self.first
            if kept or (not partial and is_dense(node.meta.get("val"))):
                found = _View(node, tuple(steps))
        return found

    def _step(self, node: torch.fx.Node) -> ViewStep | None:
        target = node.target
        if (target not in _SAME_ELEMENTS and target not in _SOME_ELEMENTS) or node.kwargs:
            return None
        args = [_step_argument(a, self.arguments) for a in node.args[1:]]
        if any(a is _UNKNOWN for a in args):
            return None
        assert isinstance(target, torch._ops.OpOverload)
        is_alias = target is torch.ops.prims.view_of.default
        return ViewStep("aten::alias" if is_alias else target.name(), tuple(args))


_UNKNOWN = object()


def _step_argument(argument: Any, arguments: dict[torch.fx.Node, int]) -> Any:
    if isinstance(argument, list | tuple):
        items = tuple(_step_argument(a, arguments) for a in argument)
        return _UNKNOWN if any(i is _UNKNOWN for i in items) else items
    if isinstance(argument, torch.fx.Node):
        size = as_size(argument, arguments)
        return _UNKNOWN if size is None else size
    return argument
