"""A backend that compiles as ``onnxrt`` does, and keeps what it sees: graphs of training steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from dort_rewriter.aten import storage_order
from dort_rewriter.capture.interface import metadata_of_compilation
from dort_rewriter.compiler.building import build_block
from dort_rewriter.deployment.capture_backend import Captured, CapturedBackward, Watcher, copy_of
from dort_rewriter.deployment.interface import shows_same
from dort_rewriter.deployment.steps import StepPlan, gradients_of_ones
from dort_rewriter.errors import CaptureError
from dort_rewriter.options import OrtBackendOptions
from dort_rewriter.plan.graph_plan import GraphPlan

_OWN_MEMORY = frozenset({"non_alias", "unsafe_view_alias", "custom_function_view"})
"""What torch calls results that are views of nothing else."""


class StepWatcher(Watcher):
    """Watches a training step: its two graphs."""

    def __init__(self, options: OrtBackendOptions, tensors: Sequence[torch.Tensor]) -> None:
        super().__init__(options, tensors)
        self._metadata: Any = None
        """What AOTAutograd knows of the forward graph, once that is compiled."""
        self._before: list[torch.Tensor] = []
        """What the call writes to, as it was."""

    def compile_inference(
        self, graph_module: torch.fx.GraphModule, weights: frozenset[str]
    ) -> Callable[..., Any]:
        """Refuse it: it has no gradient."""
        raise CaptureError(
            "Nothing of the call has a gradient: no parameter and no argument that it uses "
            "requires one. Save it without training=True."
        )

    def compile_training(
        self, graph_module: torch.fx.GraphModule, given: Sequence[Any]
    ) -> Callable[..., Any]:
        """Compile the forward graph, then the backward graph."""
        plan = self.plan(graph_module)
        if self._metadata is not None:
            return self._backward(graph_module, plan)
        self._metadata = metadata_of_compilation()
        _refuse_outside_work(self._metadata)
        return self._forward(graph_module, plan)

    def _forward(self, graph_module: torch.fx.GraphModule, plan: GraphPlan) -> Callable[..., Any]:
        updates = tuple(self._metadata.mutated_inp_runtime_indices)

        def run(args: list[Any]) -> Any:
            given = [self._as_given(a, i) for i, a in enumerate(args)]
            numbers = self.numbers(given)
            block = build_block(plan, given, {}, numbers)
            providers = plan.providers(given)
            self._before = [copy_of(given[i].detach()) for i in updates]
            self.captured = Captured(block, providers, given, frozenset(numbers), updates)
            return list(block.runner.boxed(list(given)))

        run._boxed_call = True  # type: ignore[attr-defined]  # read by torch
        return run

    def _backward(self, graph_module: torch.fx.GraphModule, plan: GraphPlan) -> Callable[..., Any]:
        def run(args: list[Any]) -> Any:
            block = build_block(plan, args, {}, {})
            assert self.captured is not None
            self.captured.backward = CapturedBackward(
                block,
                plan.providers(args),
                _plan(self._metadata, graph_module, self.captured.args),
            )
            return list(block.runner.boxed(list(args)))

        run._boxed_call = True  # type: ignore[attr-defined]  # read by torch
        return run

    def _as_given(self, value: Any, place: int) -> Any:
        """The tensor of the call that a tensor shows: torch detaches some."""
        if not isinstance(value, torch.Tensor):
            return value
        given = [g for g in self.given if isinstance(g, torch.Tensor)]
        found = [g for g in given if g is value] or [g for g in given if shows_same(g, value)]
        here = [g for g in self.given[place : place + 1] if any(g is f for f in found)]
        if here or len(found) == 1:
            return (here or found)[0]
        raise CaptureError(
            "Arguments of the training step share their memory: give each memory of its own "
            "(clone())."
        )

    def finish(self) -> None:
        """Run the backward graph."""
        captured = self.captured
        if captured is None:
            return
        gradients = gradients_of_ones(
            [captured.results[i] for i in _derived(self._metadata)],
            [captured.args[i] for i in _wanted(captured.args)],
        )
        if captured.backward is None:
            raise CaptureError("The call has no gradient.")
        captured.backward.gradients = gradients

    def restore(self) -> None:
        """Bring what the call has written to back to what it was."""
        if self.captured is None:
            return
        with torch.no_grad():
            for i, before in zip(self.captured.updates, self._before, strict=True):
                self.captured.args[i].copy_(before)


def _has_gradient(result: Any) -> bool:
    """Whether the backward graph takes a gradient of a result, of which torch knows this."""
    dtype = getattr(result, "dtype", None)
    is_tensor = issubclass(result.raw_type, torch.Tensor)
    return bool(result.requires_grad and is_tensor) and (
        dtype is None or dtype.is_floating_point or dtype.is_complex
    )


def _derived(metadata: Any) -> tuple[int, ...]:
    """The results of the call that have a gradient."""
    return tuple(i for i, info in enumerate(metadata.output_info) if _has_gradient(info))


def _wanted(args: Sequence[Any]) -> tuple[int, ...]:
    """The arguments that get a gradient."""
    return tuple(i for i, a in enumerate(args) if isinstance(a, torch.Tensor) and a.requires_grad)


def _plan(metadata: Any, backward: torch.fx.GraphModule, args: Sequence[Any]) -> StepPlan:
    """How two graphs belong together."""
    derived = _derived(metadata)
    values = [n.meta.get("val") for n in backward.graph.nodes if n.op == "placeholder"]
    tangents = values[len(values) - len(derived) :]
    return StepPlan(
        updates=tuple(metadata.mutated_inp_runtime_indices),
        results=len(metadata.output_info),
        numbers=int(metadata.num_symints_saved_for_bw or 0),
        derived=derived,
        orders=tuple(storage_order(t) or tuple(range(t.dim())) for t in tangents),
        wanted=_wanted(args),
    )


def _refuse_outside_work(metadata: Any) -> None:
    """Refuse what AOTAutograd does around two graphs and a plan does not say."""
    if metadata is None:
        raise CaptureError("torch says nothing of the training step.")
    changed = [metadata.input_info[i] for i in metadata.mutated_inp_runtime_indices]
    if any(info.mutates_metadata or info.requires_grad for info in changed):
        raise CaptureError(
            "It changes the shape of an argument or a buffer, or writes to one that has a "
            "gradient: a training step that does so cannot be saved."
        )
    kinds = {info.output_type.name for info in metadata.output_info}
    if metadata.num_intermediate_bases or kinds - _OWN_MEMORY:
        raise CaptureError(
            "It returns an argument, or views of what it returns or is given: return copies "
            "(clone()) from a training step that is saved."
        )
    more = ("tokens", "is_rng_op_functionalized", "num_graphsafe_rng_states")
    if any(getattr(metadata, name, None) for name in more):
        raise CaptureError("It draws random numbers, or has effects that only torch orders.")
