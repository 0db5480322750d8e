"""One graph of a compiled model, made again by the same steps, and watched at its first run.

Dynamo reads the call, AOTAutograd and the backend make a model of it: what comes out is what a
call of the compiled model runs. The way from the arguments of the call to those of the graph, and
from its results to the result of the call, is seen from the run: tensors are identified by `is`.
"""

from __future__ import annotations

import builtins
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from dort_rewriter.aten import storage_order
from dort_rewriter.backends.onnxrt import OrtBackend
from dort_rewriter.backends.onnxrt_graphs import make_dispatcher, make_recipe
from dort_rewriter.capture.aot import compile_with_aot
from dort_rewriter.capture.interface import metadata_of_compilation
from dort_rewriter.capture.updates import updates_of
from dort_rewriter.compiler.building import build_block
from dort_rewriter.compiler.frozen import FrozenNumbers, FrozenWeights
from dort_rewriter.deployment.compiled import Compiled
from dort_rewriter.deployment.interface import shows_same
from dort_rewriter.deployment.steps import StepPlan, gradients_of_ones
from dort_rewriter.errors import CaptureError, DortError, UnsupportedOpError
from dort_rewriter.export.decompositions import get_tracing_table
from dort_rewriter.options import OrtBackendOptions
from dort_rewriter.plan.graph_plan import GraphPlan, plan_graph
from dort_rewriter.plan.recipe import BuiltBlock, Providers, boxed


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
    return tensor.new_empty_strided(tensor.shape, tensor.stride()).copy_(tensor)


def capture(
    found: Compiled, args: Sequence[Any], kwargs: Mapping[str, Any], *, training: bool
) -> Captured:
    """Make the graph of a call, and run it once on these arguments, which it leaves as they are.

    Of a training step it makes the graph of the gradients as well, and runs it.

    Raises :class:`CaptureError` when there is no such graph that ONNX Runtime runs as a whole.
    """
    tensors = [t for t in tree_leaves((args, dict(kwargs))) if isinstance(t, torch.Tensor)]
    if found.module is not None:
        tensors += [*found.module.parameters(), *found.module.buffers()]
    watcher = (StepWatcher if training else Watcher)(found.options, tensors)
    # Each with code and globals of its own: nothing is kept with those of the caller.
    names: dict[str, Any] = {
        "target": found.target,
        "__builtins__": builtins,
        "__name__": __name__,
    }
    frame = FunctionType(_frame.__code__.replace(), names, "saved_call")
    compiled = torch.compile(frame, backend=watcher, fullgraph=True, dynamic=found.dynamic)
    fixed = torch._dynamo.config.patch(automatic_dynamic_shapes=False)
    # Sizes that are equal in this call by chance (a batch of 4, rows of 4) are not one size.
    symbols: Any = torch.fx.experimental._config
    apart = symbols.patch(use_duck_shape=False)
    with torch.set_grad_enabled(training), fixed, apart:
        try:
            value = compiled(*args, **kwargs)
            watcher.finish()
        except DortError:
            raise
        except torch._dynamo.exc.BackendCompilerFailed as error:
            raise _cause(error) from None
        except torch._dynamo.exc.TorchDynamoException as error:
            raise CaptureError(
                f"The call is not one graph, and only one can be saved: {_brief(error)}"
            ) from error
        finally:
            watcher.restore()
            # What Dynamo keeps of the call is found here, and would never go. It takes the names.
            names.update(dict.fromkeys(names))
    captured, watcher.captured = watcher.captured, None
    if captured is None:
        raise CaptureError("The call computes nothing with tensors: there is no graph to save.")
    captured.value = value
    return captured


def _frame(*args: Any, **kwargs: Any) -> Any:
    return target(*args, **kwargs)  # type: ignore[name-defined]  # noqa: F821  # a global of each


def _cause(error: BaseException) -> BaseException:
    """The error of ours in an error of Dynamo, or the error as it is."""
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, DortError):
            return found.with_traceback(None)
        found = getattr(found, "inner_exception", None) or found.__cause__
    return error


def _brief(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines()]
    return " ".join([line for line in lines if line][:6])


# -- graphs of inference --------------------------------------------------------------------------


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

        return boxed(run)


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


# -- graphs of training steps ---------------------------------------------------------------------

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
        _refuse_outside_work_of_steps(self._metadata)
        return self._forward(plan)

    def _forward(self, plan: GraphPlan) -> Callable[..., Any]:
        updates = tuple(self._metadata.mutated_inp_runtime_indices)

        def run(args: list[Any]) -> Any:
            given = [self._as_given(a, i) for i, a in enumerate(args)]
            numbers = self.numbers(given)
            block = build_block(plan, given, {}, numbers)
            providers = plan.providers(given)
            self._before = [copy_of(given[i].detach()) for i in updates]
            self.captured = Captured(block, providers, given, frozenset(numbers), updates)
            return list(block.runner.boxed(list(given)))

        return boxed(run)

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

        return boxed(run)

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


def _refuse_outside_work_of_steps(metadata: Any) -> None:
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
