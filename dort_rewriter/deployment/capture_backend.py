"""A backend that compiles as ``onnxrt`` does, and keeps what it sees: graphs of inference, and
what one run of each was given and gave."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from dort_rewriter.backends.onnxrt import OrtBackend
from dort_rewriter.backends.onnxrt_graphs import make_dispatcher, make_recipe
from dort_rewriter.capture.aot import compile_with_aot
from dort_rewriter.capture.interface import metadata_of_compilation
from dort_rewriter.capture.updates import updates_of
from dort_rewriter.compiler.building import build_block
from dort_rewriter.compiler.frozen import FrozenNumbers, FrozenWeights
from dort_rewriter.deployment.steps import StepPlan
from dort_rewriter.errors import CaptureError, UnsupportedOpError
from dort_rewriter.export.decompositions import get_tracing_table
from dort_rewriter.options import OrtBackendOptions
from dort_rewriter.plan.graph_plan import GraphPlan, plan_graph
from dort_rewriter.plan.recipe import BuiltBlock, Providers


class ComputedNumber(int):
    """An integer that the graph computes, on its way to the result of the call."""

    place: int
    """Its position among the results of the graph."""


@dataclass
class CapturedBackward:
    """The graph of the gradients of a call, its model, and what one run of it gave."""

    block: BuiltBlock
    providers: Providers
    plan: StepPlan
    gradients: list[Any] = field(default_factory=list)
    """Those of the arguments that get one, for gradients of ones."""


@dataclass
class Captured:
    """A graph, its model, and what one run of it was given and gave."""

    block: BuiltBlock
    providers: Providers
    args: list[Any]
    """The arguments of the graph, as the run got them."""
    frozen: frozenset[int]
    """Those that the model holds."""
    updates: tuple[int, ...]
    """The arguments whose new values are the last results, in their order; of a training step the
    first ones."""
    results: list[Any] = field(default_factory=list)
    """The results of the graph, as the call got them."""
    value: Any = None
    """The result of the call."""
    backward: CapturedBackward | None = None


def copy_of(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the strides of the original, whatever they are."""
    made = torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )
    return made.copy_(tensor)


class Watcher:
    """A backend that compiles as ``onnxrt`` does, and keeps what it sees."""

    def __init__(self, options: OrtBackendOptions, tensors: Sequence[torch.Tensor]) -> None:
        self.options = options
        self._places = {t.data_ptr() for t in tensors}
        self.captured: Captured | None = None
        self.given: tuple[Any, ...] = ()
        """The arguments of Dynamo's graph, while it runs."""

    def __call__(
        self, graph_module: torch.fx.GraphModule, given: Sequence[Any]
    ) -> Callable[..., Any]:
        """Compile a graph of Dynamo."""
        _refuse_side_effects()
        compiled = compile_with_aot(
            graph_module,
            given,
            compile_graph=self.compile_training,
            decompositions=get_tracing_table(make_dispatcher()),
            compile_inference=self.compile_inference,
        )

        def run(*args: Any) -> Any:
            self.given = args
            results = compiled(*args)
            self.given = ()
            if self.captured is None:
                raise CaptureError(
                    "torch refuses the types of an operator of it, or of its gradient: such a "
                    "call runs in eager mode, and only what ONNX Runtime runs can be saved."
                )
            self.captured.results = list(results)
            return [_marked(r, i) for i, r in enumerate(results)]

        return run

    def finish(self) -> None:
        """Have the rest captured, when the call has run."""

    def restore(self) -> None:
        """Leave the state of the caller as it was; a graph of inference writes to copies."""

    def numbers(self, given: Sequence[Any]) -> Mapping[int, torch.Tensor]:
        """The numbers among the arguments that are part of the graph: none is a tensor that a call
        may hand over with another value, or that is written to."""
        own = [
            None if isinstance(a, torch.Tensor) and a.data_ptr() in self._places else a
            for a in given
        ]
        return FrozenNumbers.take(own).tensors

    def compile_training(
        self, graph_module: torch.fx.GraphModule, given: Sequence[Any]
    ) -> Callable[..., Any]:
        """Compile a forward graph, or its backward graph."""
        raise CaptureError(
            "It is a graph of a training step: save(compiled, path, training=True) saves one."
        )

    def plan(self, graph_module: torch.fx.GraphModule) -> GraphPlan:
        """How a graph is made a model, which has to be one."""
        backend = OrtBackend(self.options)
        made = make_recipe(backend, self.options)
        recipe = dataclasses.replace(made, as_stored=True, runs_here=False, in_a_file=True)
        plan = plan_graph(graph_module, recipe)
        if not plan.whole:
            raise CaptureError(
                "Some of it runs in torch, and only what ONNX Runtime runs as a whole can be "
                f"saved: {UnsupportedOpError(plan.fallbacks)}"
            )
        return plan

    def compile_inference(
        self, graph_module: torch.fx.GraphModule, weights: frozenset[str]
    ) -> Callable[..., Any]:
        """Compile a graph that has no gradient; it is given the names of its weights."""
        _refuse_outside_work()
        plan = self.plan(graph_module)
        updates = tuple(updates_of(graph_module.graph).values())

        def run(args: list[Any]) -> Any:
            given = list(args)
            names = weights if self.options.freeze else frozenset()
            frozen = FrozenWeights.take(graph_module, names, given)
            numbers = self.numbers(given)
            block = build_block(plan, given, frozen.tensors, numbers)
            self.captured = Captured(
                block,
                plan.providers(given),
                given,
                frozenset({*frozen.tensors, *numbers}),
                updates,
            )
            fed = list(given)
            for i in updates:  # the state of the caller stays what it is
                fed[i] = copy_of(given[i])
            results = list(block.runner.boxed(fed))
            if updates:  # what is an argument already is not copied there
                results[-len(updates) :] = [given[i] for i in updates]
            return results

        run._boxed_call = True  # type: ignore[attr-defined]  # read by torch
        return run


def _marked(result: Any, place: int) -> Any:
    if type(result) is not int:
        return result
    marked = ComputedNumber(result)
    marked.place = place
    return marked


def _refuse_outside_work() -> None:
    """Refuse what AOTAutograd does around a graph: changes of arguments that it does not hold."""
    metadata = metadata_of_compilation()
    if metadata is None or metadata.mutated_inp_runtime_indices:
        raise CaptureError(
            "It changes an argument or a buffer in a way that only torch does (its shape, or "
            "through two views of the same memory): a graph that does so cannot be saved. Write "
            "values in place (copy_, index_copy_, add_), each to a tensor of its own."
        )
    for result in metadata.output_info:
        written = result.base_idx is not None and metadata.input_info[result.base_idx].mutates_data
        if result.output_type.name == "alias_of_input" and written:
            raise CaptureError(
                "It returns a view of a tensor that it writes to: return a copy (clone()), or the "
                "tensor itself."
            )


def _refuse_side_effects() -> None:
    """Refuse a call that changes Python objects: the graph would not."""
    from torch._dynamo.symbolic_convert import InstructionTranslator

    effects = InstructionTranslator.current_tx().output.side_effects
    changed = [
        v
        for v in effects.id_to_variable.values()
        if effects.is_modified(v)
        and "Existing" in type(v.mutation_type).__name__
        and not _is_as_before(v, effects.store_attr_mutations.get(v))
    ]
    if not changed:
        return
    places = sorted({_place(v) for v in changed})
    raise CaptureError(
        f"The call changes Python objects ({', '.join(places)}), which a saved graph does not: "
        "keep what changes in buffers of the module, and write to them in place."
    )


def _is_as_before(variable: Any, changes: Mapping[str, Any] | None) -> bool:
    """Whether the attributes of an object were changed, and changed back."""
    if not changes or not hasattr(variable, "value"):
        return False
    missing = object()
    for name, value in changes.items():
        before = getattr(variable.value, name, missing)
        if not value.is_python_constant() or value.as_python_constant() is not before:
            return False
    return True


def _place(variable: Any) -> str:
    source = getattr(variable, "source", None)
    name = getattr(source, "name", None)
    text = name() if callable(name) else name
    return str(text or type(variable).__name__)
