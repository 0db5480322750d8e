"""What to do with a graph: the choices of a backend, handed to whoever compiles it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dort_rewriter import env
from dort_rewriter.backends.blocks import BuiltBlock, ExportedBlock, RunBoxed, Runner
from dort_rewriter.backends.own_kernels import uses_own_kernels
from dort_rewriter.backends.torch_kernels import place_of
from dort_rewriter.capture.placement import (
    CALLED,
    CHECK,
    CHECKS,
    KERNEL,
    MOVING,
    ONE_KERNEL,
    PLACED,
    RUNNING,
    Place,
    choose_place,
    find_override,
)
from dort_rewriter.capture.ties import TIES, has_torchs_order
from dort_rewriter.errors import UnsupportedOp, working_on
from dort_rewriter.export.annotations import leaves_model
from dort_rewriter.export.complex_numbers import complex_converters
from dort_rewriter.export.converters.cumulative import has_known_size
from dort_rewriter.export.dispatcher import Dispatcher
from dort_rewriter.export.provenance import source_line
from dort_rewriter.export.registry import builtin_converters, op_name
from dort_rewriter.export.torch_calls import is_called, may_be_called
from dort_rewriter.options import OrtBackendOptions
from dort_rewriter.runtime.providers import CPU
from dort_rewriter.trace import CompileTrace

__all__ = ["Recipe", "RunBoxed"]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What to do with a graph."""

    dispatcher: Dispatcher
    options: OrtBackendOptions
    select_providers: Callable[
        [torch.fx.GraphModule, Sequence[Any]], Sequence[tuple[str, Mapping[str, Any]]]
    ]
    on_built: Callable[[BuiltBlock], None] | None = None
    """Called once for each block, when its session exists."""
    around: Callable[[torch.fx.GraphModule, RunBoxed], RunBoxed] | None = None
    """Put around what runs a block."""
    weights: frozenset[str] = frozenset()
    """Names of placeholders to put into the model."""
    trace: CompileTrace = dataclasses.field(default_factory=CompileTrace)
    refused: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """FX nodes, by name, that turned out not to be convertible, and why."""
    hidden_copies: bool = True
    """Whether the program may copy to a memory format what was traced as if it had it."""
    owns_views: bool = False
    """Whether views of what it computes leave the graph as it makes them: AOTAutograd makes them
    anew where there are gradients."""
    build_now: bool = False
    """Build the blocks when the graph is compiled, not at their first call."""
    rename_inputs: bool = True
    """Call the inputs ``input0``, ``input1``, ...; False keeps the names of the graph."""
    runs_here: bool = False
    """Whether models run in the process that makes them: their sessions may call what has no
    converter, where the graph would be cut, and multiply by MKL."""
    compared: bool = False
    """Whether results are compared with torch's at each call."""
    as_stored: bool = False
    """Let the model read arguments in the order of their memory: less is copied at each call."""
    make_runner: Callable[[ExportedBlock], Runner] | None = None
    """Makes what runs a model in place of a session, for debugging."""
    dump_prefix: str | None = None
    """Prefix of the files written for each model; None reads it from the environment."""

    def __post_init__(self) -> None:
        """Show the work on the graph where the options ask for it."""
        self.trace.verbose = self.options.optimization.verbose > 0

    def place(self, node: torch.fx.Node) -> Place:
        """Where a node of an ATen graph is to run, if it can."""
        if node.op != "call_function":
            return "onnxruntime"
        place = place_of(node, self.options)
        if place == "torch" and _has_kernel(node) and uses_own_kernels(self.options.optimization):
            kept = {"*": "onnxruntime", **(self.options.placement or {})}
            return choose_place(node, op_name(node.target), kept)
        return place

    def may_call_mkl(self, provider: str) -> bool:
        """Whether models run here, where MKL is."""
        return self.runs_here and provider == CPU

    def refusal(self, node: torch.fx.Node) -> UnsupportedOp | None:
        """Why a node of an ATen graph stays in torch; None when it does not."""
        if node.op == "get_attr" or _is_getitem(node):
            return None
        with working_on(functools.partial(source_line, node)):
            return self._refusal(node)

    def may_call(self, node: torch.fx.Node, *, draws: bool = False) -> bool:
        """Whether a session may call what a node of an ATen graph calls, and is to.

        With ``fallback=False`` only what ``placement`` names is: the rest is an error, but for
        ``draws``, which torch makes in any case.
        """
        asked = find_override(op_name(node.target), self.options.placement)
        if asked is None and not self.options.fallback and not draws:
            return False
        if asked not in (None, KERNEL):
            return False
        # In this order: the second may compile our kernels, which those on CUDA do without.
        return may_be_called(node, draws=draws) and self._may_call_any

    def may_draw(self, node: torch.fx.Node) -> bool:
        """Whether a session may draw the random numbers of a node, by a call of torch.

        Not where a block is computed again, to be compared: it would draw others.
        """
        again = self.options.verify or env.read("DORT_VERIFY") or self.compared
        return not again and self.may_call(node, draws=True)

    @functools.cached_property
    def _may_call_any(self) -> bool:
        options = self.options
        plain = not options.pre_ort_model_transforms  # which know nothing of our operators
        return self.runs_here and plain and uses_own_kernels(options.optimization)

    def _refusal(self, node: torch.fx.Node) -> UnsupportedOp | None:
        name, found = op_name(node.target), self.dispatcher.find(node)
        reason = found if isinstance(found, str) else self.refused.get(node.name)
        if is_called(node) and not isinstance(found, str):
            return None
        reason = reason or leaves_model(node)
        if name in CHECKS and isinstance(found, str):
            reason = CHECK
        if reason is None and self.place(node) == "torch":
            reason = PLACED
        if reason is None and found is builtin_converters().get(name):
            own = functools.partial(uses_own_kernels, self.options.optimization)
            reason = TIES if has_torchs_order(node, name, has_kernel=own) else None
        ours = (builtin_converters().get(name), complex_converters().get(name))
        if reason is None and found in ours and _is_one(node, name):
            reason = CALLED if self.may_call(node) else None
        if reason is None:
            return None
        return UnsupportedOp(name, reason, source_line(node), node.name)


def _has_kernel(node: torch.fx.Node) -> bool:
    """Whether our kernels compute with the numbers of a node: none of them is slower than
    torch's by what a cut costs."""
    values = [n.meta.get("val") for n in node.all_input_nodes]
    types = {v.dtype for v in values if isinstance(v, torch.Tensor) and v.is_floating_point()}
    return bool(types) and types <= {torch.float32, torch.bfloat16, torch.float16}


def _is_one(node: torch.fx.Node, name: str) -> bool:
    """Whether a node is one kernel in torch, and many nodes in ONNX, or other numbers."""
    running = name in RUNNING and not has_known_size(node)
    return name in ONE_KERNEL or running or _is_complex_abs(node, name) or _moves(node, name)


def _moves(node: torch.fx.Node, name: str) -> bool:
    """Whether a node takes moments of float64 from number to number: what is NaN where numbers
    are huge, or not finite, hangs on the order. Our kernels follow it in float32."""
    first = node.args[0] if node.args else None
    value = first.meta.get("val") if isinstance(first, torch.fx.Node) else None
    return name in MOVING and isinstance(value, torch.Tensor) and value.dtype is torch.float64


def _is_complex_abs(node: torch.fx.Node, name: str) -> bool:
    """Whether a node is the size of complex numbers: the gradient of a largest norm, which is
    torch's, looks for sizes that are equal to it, and another rounding finds none."""
    return name == "aten::abs" and any(
        isinstance(v := n.meta.get("val"), torch.Tensor) and v.is_complex()
        for n in node.all_input_nodes
    )


def _is_getitem(node: torch.fx.Node) -> bool:
    return op_name(node.target) == "_operator::getitem"
