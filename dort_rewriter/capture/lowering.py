"""Obtain an ATen graph with metadata from whatever a user hands to ``to_onnx``.

A module or a function goes through ``torch.export``; Dynamo's own graph (methods, modules, torch
functions) through AOTAutograd; a graph that is ATen already is taken as it is, fake values being
propagated when its nodes carry none.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._subclasses.fake_tensor import is_fake

from dort_rewriter.aten import last_frame
from dort_rewriter.capture.dim_names import (
    check_dynamic,
    flatten_shapes,
    name_symbols,
    read_shapes,
    require_all_said,
    without_names,
)
from dort_rewriter.capture.functions import FunctionModule, named_tensors
from dort_rewriter.capture.gradients import trace_with_gradients, transforms_ended
from dort_rewriter.capture.interface import propagate
from dort_rewriter.capture.lines import is_users
from dort_rewriter.capture.number_checks import WithoutNumbers
from dort_rewriter.capture.tracing import (
    correct_tracing,
    keep_resizing,
    through_compiled_parts,
)
from dort_rewriter.errors import CaptureError
from dort_rewriter.torch_defects.margin_loss import corrected
from dort_rewriter.torch_defects.overlapping_writes import traced_value

logger = logging.getLogger(__name__)

Table = Mapping[Any, Callable[..., Any]]

Call = tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]
"""A module, its arguments and keyword arguments."""


@dataclass(frozen=True)
class LoweredGraph:
    """An ATen graph, and what is known of its inputs."""

    graph_module: torch.fx.GraphModule
    constants: dict[str, torch.Tensor] = field(default_factory=dict)
    """The values of the placeholders that are not inputs."""
    dim_names: dict[str, str] = field(default_factory=dict)
    """What a user calls the symbols of the graph."""


def lower(
    mod: torch.nn.Module | torch.export.ExportedProgram | Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    decompositions: Table,
    *,
    dynamic_shapes: Any = None,
    attempts: Sequence[bool] = (False,),
) -> LoweredGraph:
    """The ATen graph of a module, function, exported program or FX graph.

    `attempts` are the values of torch.export's ``strict`` to try one after the other.
    """
    if isinstance(mod, torch.export.ExportedProgram):
        if dynamic_shapes is None:  # a module is made of the program for their names alone
            return _from_program(mod, decompositions, ())
        given, named = mod.example_inputs or ((), {})
        shapes = _leaves(mod.module(), given, named, dynamic_shapes)
        return _from_program(mod, decompositions, shapes)
    if isinstance(mod, torch.fx.GraphModule) and (dynamic_shapes is None or is_lowered(mod)):
        if kwargs:
            raise CaptureError(
                "A GraphModule takes positional arguments only: kwargs must be empty."
            )
        lowered = _from_graph_module(mod, args, decompositions)
        return lowered if dynamic_shapes is None else _named(lowered, dynamic_shapes)
    if isinstance(mod, torch.fx.GraphModule) and not args and not kwargs:
        raise CaptureError("dynamic_shapes need example arguments (args=...) of the graph.")
    if not callable(mod):
        raise CaptureError(
            "Expected a Module, a function, an ExportedProgram or a GraphModule, got "
            f"{type(mod).__name__}."
        )
    if not isinstance(mod, torch.nn.Module):
        mod = FunctionModule(mod)
    call = (mod, tuple(args), dict(kwargs or {}))
    try:
        with _warning_if_it_works(), transforms_ended():
            program = _export(call, without_names(read_shapes(*call, dynamic_shapes)), attempts)
            return _from_program(program, decompositions, _leaves(*call, dynamic_shapes))
    except CaptureError as refused:
        traced = _with_gradients(call, dynamic_shapes, decompositions)
        if traced is None:
            raise
        logger.info("%s It was traced with its gradients instead.", refused)
        return traced


@contextlib.contextmanager
def _warning_if_it_works() -> Iterator[None]:
    """Hold warnings back until the block is done: those of an export that fails mean nothing."""
    with warnings.catch_warnings(record=True) as held:
        warnings.simplefilter("always")
        yield
    for each in held:
        warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)


def _with_gradients(call: Call, dynamic_shapes: Any, decompositions: Table) -> LoweredGraph | None:
    """The graph of a module that differentiates, which ``torch.export`` refuses; None of any other
    module, and of one that cannot be traced so either."""
    mod, args, kwargs = call
    shapes = None if dynamic_shapes is None else _leaves(*call, dynamic_shapes)
    leaves = torch.utils._pytree.tree_leaves((args, kwargs))
    pairs = zip(leaves, shapes or [None] * len(leaves), strict=True)
    given = [shape for leaf, shape in pairs if isinstance(leaf, torch.Tensor)]
    with (
        _keeping_marks(call[1:]),
        transforms_ended(),
        correct_tracing(),
        WithoutNumbers(),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # torch's, of parts of it that it uses itself
        try:
            require_all_said(read_shapes(*call, dynamic_shapes), shapes or ())
            graph, constants = trace_with_gradients(mod, args, kwargs, shapes, decompositions)
            nodes = [n for n in graph.graph.nodes if n.op == "placeholder"][len(constants) :]
            values = [n.meta["val"] for n in nodes]
            check_dynamic(values, given)
        except (*_REFUSALS, CaptureError) as error:
            logger.info("Tracing with gradients failed: %s", _first_line(error))
            return None
    return LoweredGraph(graph, constants, name_symbols(graph.graph, values, given))


def _leaves(
    mod: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], dynamic_shapes: Any
) -> list[Any]:
    """What ``dynamic_shapes`` say of each leaf of the arguments of a module."""
    named = read_shapes(mod, args, kwargs, dynamic_shapes)
    return flatten_shapes(mod.forward, args, kwargs, named)


def _named(lowered: LoweredGraph, dynamic_shapes: Any) -> LoweredGraph:
    """A graph that is ATen already, with the names of its dimensions."""
    graph_module = lowered.graph_module
    values = [n.meta["val"] for n in graph_module.graph.nodes if n.op == "placeholder"]
    shapes = _leaves(graph_module, values, {}, dynamic_shapes)
    check_dynamic(values, shapes)
    names = name_symbols(graph_module.graph, values, shapes)
    return dataclasses.replace(lowered, dim_names=names)


_REFUSALS = (RuntimeError, ValueError, TypeError, AssertionError, AttributeError, LookupError)
"""What torch raises where it does not trace a model."""


def _export(call: Call, shapes: Any, attempts: Sequence[bool]) -> torch.export.ExportedProgram:
    """Export a module, ``strict`` or not as the attempts say: the first one that works."""
    errors: list[Exception] = []
    for strict in attempts:
        program = _attempt(call, shapes, strict)
        if isinstance(program, torch.export.ExportedProgram):
            return program
        errors.append(program)
    first = errors[0]
    where = _place(first)
    raise CaptureError(
        f"torch.export could not capture {call[0]._get_name()}: {_first_line(first)}"
        f"{f', at {where}' if where else ''}\n"
        f"{_advice(first)}"
    ) from first


def _attempt(call: Call, shapes: Any, strict: bool) -> torch.export.ExportedProgram | Exception:
    if strict:
        return _exported(call, shapes, strict=True)
    with WithoutNumbers():
        found = _exported(call, shapes, strict=False)
    if isinstance(found, torch._dynamo.exc.UncapturedHigherOrderOpError):
        # torch 2.8 compiles `cond` on its way, where such a mode breaks the graph.
        return _exported(call, shapes, strict=False)
    return found


def _exported(
    call: Call, shapes: Any, *, strict: bool
) -> torch.export.ExportedProgram | Exception:
    with leaving_no_hook():
        try:
            with correct_tracing(), through_compiled_parts(), _keeping_marks(call[1:]):
                return torch.export.export(*call, dynamic_shapes=shapes, strict=strict)
        # torch.export refuses a model in many ways; the text of the first line says which.
        except _REFUSALS as e:
            logger.info("torch.export(strict=%s) failed: %s", strict, _first_line(e))
            return e


@contextlib.contextmanager
def leaving_no_hook() -> Iterator[None]:
    """Take back what an export that fails (torch 2.8) leaves on the buffers of all modules: each
    later assignment to one would pass it, and break the graph of Dynamo."""
    hooks = torch.nn.modules.module._global_buffer_registration_hooks
    before = set(hooks)
    try:
        yield
    finally:
        for left in set(hooks) - before:
            del hooks[left]


@contextlib.contextmanager
def _keeping_marks(values: Any) -> Iterator[None]:
    """Let tensors have the attributes they had: an export that fails leaves marks of dynamic
    dimensions on them, which each later one would obey."""
    leaves = torch.utils._pytree.tree_leaves(values)
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    before = [
        {name: set(v) if isinstance(v, set) else v for name, v in vars(t).items()} for t in tensors
    ]
    try:
        yield
    finally:
        for tensor, attributes in zip(tensors, before, strict=True):
            vars(tensor).clear()
            vars(tensor).update(attributes)


def _advice(error: Exception) -> str:
    if "data-dependent" in str(error).lower():
        return (
            "Data-dependent control flow needs torch.cond, or a rewrite; "
            "torch.compile(backend='onnxrt') breaks the graph there instead."
        )
    return (
        "Check that the model runs on these args and kwargs, and that dynamic_shapes fits them; "
        "torch.export.draft_export lists what else is in the way."
    )


def _place(error: Exception) -> str:
    """The innermost line of the model at which torch.export failed, or an empty text."""
    if found := last_frame(str(error)):
        return found
    frames = [f for f in traceback.extract_tb(error.__traceback__) if is_users(f.filename)]
    return last_frame("".join(traceback.format_list(frames[-1:])))


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


def _from_program(
    program: torch.export.ExportedProgram, decompositions: Table, shapes: Sequence[Any]
) -> LoweredGraph:
    # NOTE: torch 2.8 exports a gradient that way, and crashes when it reads such a constant.
    if any(is_fake(value) for value in program.constants.values()):
        raise CaptureError("torch.export took a value that the model computes for a constant.")
    with warnings.catch_warnings(), correct_tracing(program.graph_module):
        # torch 2.13 copies tree specs of a class that it deprecates.
        warnings.filterwarnings("ignore", message=r".isinstance.treespec", category=FutureWarning)
        try:
            lowered = program.run_decompositions(corrected(decompositions))
        except _REFUSALS as e:
            raise CaptureError(
                f"The program could not be traced with its decompositions: {_first_line(e)}\n"
                "Another decomposition_table may do; the default one is made for conversion."
            ) from e
    signature = lowered.graph_signature
    stored = {**lowered.state_dict, **lowered.constants}
    targets = {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }
    graph_module = lowered.graph_module
    values = {n.name: n.meta.get("val") for n in graph_module.graph.nodes if n.op == "placeholder"}
    given = [values.get(str(name)) for name in signature.user_inputs]
    dim_names = {}
    if len(given) == len(shapes):
        check_dynamic(given, shapes)
        dim_names = name_symbols(graph_module.graph, given, shapes)
    _keep_outputs(graph_module, signature)
    _drop_inputs(graph_module, signature)
    if empty := [target for target in targets.values() if stored[target].is_meta]:
        raise CaptureError(
            f"{', '.join(map(repr, empty[:3]))} {'is' if len(empty) == 1 else 'are'} on the meta "
            "device and without values: load the weights first (to_empty, load_state_dict)."
        )
    constants = {name: stored[target] for name, target in targets.items()}
    return LoweredGraph(graph_module, constants, dim_names)


def _drop_inputs(graph_module: torch.fx.GraphModule, signature: Any) -> None:
    """Drop the inputs that stand for Python values, which the graph was made for, and the tokens
    that order checks, as of a solved system."""
    kinds = torch.export.graph_signature
    fixed = {
        spec.arg.name
        for spec in signature.input_specs
        if isinstance(spec.arg, kinds.ConstantArgument) or spec.kind is kinds.InputKind.TOKEN
    }
    for node in list(graph_module.graph.nodes):
        if node.op == "placeholder" and node.name in fixed and not node.users:
            graph_module.graph.erase_node(node)


def _keep_outputs(graph_module: torch.fx.GraphModule, signature: Any) -> None:
    """Drop the outputs that stand for mutated buffers and arguments: a model file has no state.

    NOTE: one that the model returns too is there twice, under one name.
    """
    output = next(n for n in graph_module.graph.nodes if n.op == "output")
    results = output.args[0]
    returned = torch.export.graph_signature.OutputKind.USER_OUTPUT
    kept = tuple(
        r for r, spec in zip(results, signature.output_specs, strict=True) if spec.kind is returned
    )
    if len(kept) != len(results):
        output.args = (kept,)
        graph_module.graph.eliminate_dead_code()
        graph_module.recompile()


def _from_graph_module(
    graph_module: torch.fx.GraphModule,
    args: Sequence[Any],
    decompositions: Table,
) -> LoweredGraph:
    placeholders = [n for n in graph_module.graph.nodes if n.op == "placeholder"]
    if args and len(args) != len(placeholders):
        raise CaptureError(
            f"The graph takes {len(placeholders)} argument(s), {len(args)} were given."
        )
    if not _is_aten(graph_module):
        return _lower_dynamo(graph_module, args, decompositions)
    if is_lowered(graph_module):
        return LoweredGraph(graph_module)
    if placeholders and not args:
        raise CaptureError("The graph carries no metadata: give example arguments (args=...).")
    propagate(graph_module, args)
    return LoweredGraph(graph_module)


def is_lowered(graph_module: torch.fx.GraphModule) -> bool:
    """Whether a graph is made of ATen operators, with the metadata that conversion needs."""
    return _is_aten(graph_module) and all(
        "val" in n.meta for n in graph_module.graph.nodes if n.op not in ("get_attr", "output")
    )


def _is_aten(graph_module: torch.fx.GraphModule) -> bool:
    for node in graph_module.graph.nodes:
        if node.op in ("call_module", "call_method"):
            return False
        if node.op == "get_attr":
            value = functools.reduce(getattr, str(node.target).split("."), graph_module)
            if isinstance(value, torch.fx.GraphModule) and not _is_aten(value):
                return False
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            continue
        if node.op == "call_function" and not isinstance(node.target, torch._ops.OpOverload):
            module = getattr(node.target, "__module__", None)
            is_symbolic = getattr(node.target, "__name__", "").startswith("sym_")
            if module not in ("_operator", "math", "builtins") and not is_symbolic:
                return False
            if module == "_operator" and isinstance(node.meta.get("example_value"), torch.Tensor):
                return False
    return True


def _lower_dynamo(
    graph_module: torch.fx.GraphModule,
    args: Sequence[Any],
    decompositions: Table,
) -> LoweredGraph:
    """The ATen graph of Dynamo's graph, its parameters as constants."""
    from functorch.compile import aot_module_simplified, make_boxed_func

    captured: list[torch.fx.GraphModule] = []

    def keep(lowered: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        captured.append(lowered)
        return make_boxed_func(lowered.forward)

    stored = dict(named_tensors(graph_module))
    example = list(args) or _example_values(graph_module)
    with (
        torch.no_grad(),
        keep_resizing(decompositions),
        correct_tracing(graph_module),
    ):
        aot_module_simplified(
            graph_module, example, fw_compiler=keep, decompositions=corrected(decompositions)
        )
    if not captured:
        raise CaptureError("AOTAutograd gave no graph.")
    lowered = captured[0]
    lifted = [n for n in lowered.graph.nodes if n.op == "placeholder"][: len(stored)]
    constants = {n.name: t for n, t in zip(lifted, stored.values(), strict=True)}
    return LoweredGraph(lowered, constants)


def _example_values(graph_module: torch.fx.GraphModule) -> list[Any]:
    values = [traced_value(n) for n in graph_module.graph.nodes if n.op == "placeholder"]
    if any(v is None for v in values):
        raise CaptureError("The graph carries no metadata: give example arguments (args=...).")
    return values
