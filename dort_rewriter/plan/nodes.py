"""Who computes each node of an ATen graph: a session, torch, or torch called out of a session.

This is the one place that decides it. Converters and torch's kernels are found here as well, and
kept with the decision: an exporter of the graph reads them, see :class:`Planned`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

from dort_rewriter import env
from dort_rewriter.aten import source_line
from dort_rewriter.errors import UnsupportedOp
from dort_rewriter.export.annotations import leaves_model
from dort_rewriter.export.complex_numbers import complex_converters
from dort_rewriter.export.converters.cumulative import has_known_size
from dort_rewriter.export.dispatcher import Dispatcher
from dort_rewriter.export.registry import Converter, builtin_converters, op_name
from dort_rewriter.export.torch_calls import call_converter, may_be_called
from dort_rewriter.export.torch_kernels import torch_kernel
from dort_rewriter.kernels.torch_calls import register_call
from dort_rewriter.kernels.torch_library import has_function
from dort_rewriter.options import OrtBackendOptions
from dort_rewriter.plan.other_numbers import has_other_numbers
from dort_rewriter.plan.placement import (
    CALLED,
    CHECK,
    CHECKS,
    IN_ORDER,
    KERNEL,
    ONE_KERNEL,
    ORDERED,
    PLACED,
    RUNNING,
    TIES,
    Place,
    choose_place,
    find_override,
    has_torchs_order,
    uses_own_kernels,
)
from dort_rewriter.plan.recipe import Recipe
from dort_rewriter.runtime.providers import CPU

Computer = Literal["session", "call", "torch"]
"""A session, torch called out of a session, torch between sessions."""

_PLAN = "dort_plan"


@dataclass(frozen=True)
class NodePlan:
    """Who computes a node, and how."""

    op: str
    by: Computer
    converter: Converter | None
    """Writes it into a model; None where torch computes it."""
    is_kernel: bool = False
    """Whether a session computes it by torch's own kernel."""
    reason: str | None = None
    """Why it is not a session that computes it."""


def plan_of(node: torch.fx.Node) -> NodePlan | None:
    """What was decided about a node; None for what is not computed, and inside of bodies."""
    return node.meta.get(_PLAN)


def set_plan(node: torch.fx.Node, plan: NodePlan) -> None:
    """Keep with a node what is decided about it: copies of the node have it too."""
    node.meta[_PLAN] = plan


class Chooser:
    """Decides for the nodes of a graph, by a recipe and for an execution provider."""

    def __init__(self, recipe: Recipe, provider: str) -> None:
        self.recipe = recipe
        self.options: OrtBackendOptions = recipe.options
        self.provider = provider
        self.on_cpu = provider == CPU
        self.dispatcher: Dispatcher = (
            recipe.dispatcher if self.on_cpu else recipe.dispatcher.standard()
        )
        self.may_call_torch = recipe.may_call_torch(provider)

    def choose(self, node: torch.fx.Node) -> NodePlan:
        """Decide by the node alone."""
        name = op_name(node.target)
        found = self.dispatcher.find(node)
        if isinstance(found, str):
            return NodePlan(name, "torch", None, reason=CHECK if name in CHECKS else found)
        reason = self.recipe.refused.get(node.name) or leaves_model(node)
        place = self._place(node, name)
        kernel = torch_kernel(node, has_function) if self._wants_kernel(place) else None
        plan = NodePlan(name, "session", kernel or found, is_kernel=kernel is not None)
        if reason is None and place == "torch":
            reason = PLACED
        if reason is None and not self.on_cpu:
            reason = has_other_numbers(node, name, self.provider)
        if reason is None and name in ORDERED and plan.converter is builtin_converters().get(name):
            reason = TIES if has_torchs_order(node, name, has_kernel=self.has_own) else None
        ours = (builtin_converters().get(name), complex_converters().get(name))
        if reason is None and plan.converter in ours and _is_one_kernel(node, name):
            reason = CALLED if self.may_call(node) else None
        return plan if reason is None else NodePlan(name, "torch", None, reason=reason)

    def _place(self, node: torch.fx.Node, name: str) -> Place:
        """Where it runs fastest, or where the user wants it."""
        choose = functools.partial(
            choose_place,
            node,
            name,
            frozen=self.options.freeze,
        )
        place = choose(self.options.placement)
        if place == "torch" and _has_own_kernel(node) and (not self.on_cpu or self.has_own()):
            return choose({"*": "onnxruntime", **(self.options.placement or {})})
        return place

    def _wants_kernel(self, place: Place) -> bool:
        return place == KERNEL and self.on_cpu and self.recipe.torch_kernels and self.has_own()

    def has_own(self) -> bool:
        """Whether our kernels may be written, which run on the CPU's provider; asked last, since
        that may compile them."""
        return self.on_cpu and uses_own_kernels(self.options.optimization)

    def may_call(self, node: torch.fx.Node, *, draws: bool = False) -> bool:
        """Whether a session may call what a node of an ATen graph calls, and is to.

        With ``fallback=False`` only what ``placement`` names is: the rest is an error, but for
        ``draws``, which torch makes in any case.
        """
        asked = find_override(op_name(node.target), self.options.placement)
        if asked is None and not self.options.fallback and not draws:
            return False
        if asked not in (None, KERNEL) or not self.may_call_torch:
            return False
        if not may_be_called(node, draws=draws):
            return False
        return not self.options.pre_ort_model_transforms and self.has_own()

    def may_draw(self, node: torch.fx.Node) -> bool:
        """Whether a session may draw the random numbers of a node, by a call of torch.

        Not where a block is computed again, to be compared: it would draw others.
        """
        verify = self.options.verify or env.read("DORT_VERIFY")
        again = (verify and verify != "finite") or self.recipe.compared
        return not again and self.may_call(node, draws=True)

    def called(self, node: torch.fx.Node, reason: str) -> NodePlan:
        """The plan of a node that a session calls in torch."""
        name = op_name(node.target)
        return NodePlan(name, "call", call_converter(name, register_call), reason=reason)


class Planned(Dispatcher):
    """Finds what converts nodes as it was decided: who walks a graph asks for nothing else."""

    def __init__(self, chooser: Chooser) -> None:
        super().__init__()
        self._choose: Callable[[torch.fx.Node], NodePlan] = chooser.choose

    def find(self, node: torch.fx.Node) -> Converter | str:
        """The converter of an FX node, or the reason why there is none.

        The bodies of higher-order operators are part of the node they belong to: what is in them
        is decided by itself.
        """
        plan = plan_of(node) or self._choose(node)
        return plan.converter or plan.reason or "no converter"


def unsupported(node: torch.fx.Node, reason: str) -> UnsupportedOp:
    """Why torch computes a node, with its Python line."""
    return UnsupportedOp(op_name(node.target), reason, source_line(node), node.name)


def _has_own_kernel(node: torch.fx.Node) -> bool:
    """Whether our kernels compute with the numbers of a node: none of them is slower than
    torch's by what a cut costs."""
    values = [n.meta.get("val") for n in node.all_input_nodes]
    types = {v.dtype for v in values if isinstance(v, torch.Tensor) and v.is_floating_point()}
    return bool(types) and types <= {torch.float32, torch.bfloat16, torch.float16}


def _is_one_kernel(node: torch.fx.Node, name: str) -> bool:
    """Whether a node is one kernel in torch, and many nodes in ONNX, or other numbers."""
    running = name in RUNNING and not has_known_size(node)
    return (
        name in ONE_KERNEL or running or _is_complex_abs(node, name) or _goes_in_order(node, name)
    )


def _goes_in_order(node: torch.fx.Node, name: str) -> bool:
    """Whether a node takes moments of float64 from number to number, or the first of two zeros:
    what is NaN where numbers are huge, or not finite, hangs on the order. Our kernels follow it in
    float32."""
    first = node.args[0] if node.args else None
    value = first.meta.get("val") if isinstance(first, torch.fx.Node) else None
    return name in IN_ORDER and isinstance(value, torch.Tensor) and value.dtype is torch.float64


def _is_complex_abs(node: torch.fx.Node, name: str) -> bool:
    """Whether a node is the size of complex numbers: the gradient of a largest norm, which is
    torch's, looks for sizes that are equal to it, and another rounding finds none."""
    return name == "aten::abs" and any(
        isinstance(v := n.meta.get("val"), torch.Tensor) and v.is_complex()
        for n in node.all_input_nodes
    )
