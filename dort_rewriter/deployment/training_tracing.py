"""How a training step is traced: with fake tensors in the model, to one graph of all it does.

Each node keeps the line of the model's that asked for it, the nodes of a gradient that of the
operator whose gradient they are, so that what cannot be exported is named with its line.
"""

from __future__ import annotations

import contextlib
import functools
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.fx import traceback as fx_traceback

from dort_rewriter.aten import results_of
from dort_rewriter.capture.dim_names import is_known
from dort_rewriter.capture.functions import named_tensors
from dort_rewriter.capture.gradients import Fakes, varying_axes, without_torchs_errors
from dort_rewriter.capture.lines import LAYERS, Lines, is_users
from dort_rewriter.capture.tracing import correct_tracing, through_compiled_parts
from dort_rewriter.deployment.training_random import SeededDraws
from dort_rewriter.errors import CaptureError, ExportError
from dort_rewriter.export.decompositions import get_standard_table
from dort_rewriter.export.oxs_dispatcher import OxsDispatcher
from dort_rewriter.export.registry import op_name
from dort_rewriter.torch_defects.lost_checks import without_checks
from dort_rewriter.torch_defects.python_kernels import swapped


class ModuleFakes(Fakes):
    """Fakes of what a module takes and holds."""

    def all(self, leaves: Sequence[torch.Tensor], shapes: Sequence[Any]) -> list[torch.Tensor]:
        """The fakes of several tensors."""
        pairs = zip(leaves, shapes, strict=True)
        return [self.of(leaf, dynamic_axes(shape, leaf.dim())) for leaf, shape in pairs]

    @contextlib.contextmanager
    def inside(
        self, module: torch.nn.Module, trained: Collection[torch.nn.Parameter]
    ) -> Iterator[None]:
        """Have a module hold fakes for a while; those of ``trained`` need gradients."""
        wanted = {id(p) for p in trained}
        made: dict[int, torch.Tensor] = {}
        held: dict[str, torch.Tensor] = {}
        for prefix, part in module.named_modules():  # each once, whatever its names
            for name, value in named_tensors(part, recurse=False):
                if id(value) not in made:
                    fake = self.of(value)
                    if isinstance(value, torch.nn.Parameter):
                        fake = torch.nn.Parameter(fake, requires_grad=id(value) in wanted)
                    made[id(value)] = fake
                held[f"{prefix}.{name}".lstrip(".")] = made[id(value)]
        # Plain attributes too are as before: ``torch.nn.utils.weight_norm`` sets one at each call.
        kept = [
            (part, name, value)
            for part in module.modules()
            for name, value in vars(part).items()
            if isinstance(value, torch.Tensor)
        ]
        try:
            with torch.nn.utils.stateless._reparametrize_module(module, held):
                yield
        finally:
            for part, name, value in kept:
                vars(part)[name] = value


def dynamic_axes(shape: Any, rank: int) -> set[int]:
    """The axes that ``dynamic_shapes`` says may vary, of a tensor."""
    axes = varying_axes(shape)
    if wrong := [axis for axis in axes if not -rank <= axis < rank]:
        raise ExportError(f"dynamic_shapes has axis {wrong[0]} of a tensor of {rank} axes.")
    return {axis % rank for axis in axes}


def require_varying(
    leaves: Sequence[torch.Tensor], shapes: Sequence[Any], names: Sequence[str]
) -> None:
    """Raise :class:`ExportError` where an axis is to vary that tracing found to have one size."""
    for leaf, shape, name in zip(leaves, shapes, names, strict=True):
        for axis in sorted(dynamic_axes(shape, leaf.dim())):
            size: Any = leaf.shape[axis]
            if is_known(size):
                raise ExportError(
                    f"Axis {axis} of {name!r} cannot vary: the step is computed with tensors for "
                    f"which its size is {size}, as others of the batch that do not vary."
                )


# -- lines --------------------------------------------------------------------------------------


def call_model(model: torch.nn.Module, given: Any) -> Any:
    """What a model returns for the input of a batch."""
    if isinstance(given, Mapping):
        return model(**given)
    return model(*given) if isinstance(given, tuple) else model(given)


def call_loss(loss: Any, output: Any, target: Any) -> Any:
    """What a loss returns."""
    return loss(output, target)


_CALLS = (call_model, call_loss)


def lines_of_model() -> Lines:
    """For a module that calls a model, and a loss, by these functions."""
    return Lines(*_CALLS)


def _line_of(error: BaseException) -> str:
    """The innermost line of the model, else of a layer of torch, at which tracing failed."""
    frames = traceback.extract_tb(error.__traceback__)
    names = [call.__name__ for call in _CALLS]
    called = [i for i, frame in enumerate(frames) if frame.name in names]
    inner = frames[called[-1] + 1 :] if called else []
    of_users = [frame for frame in inner if is_users(frame.filename)]
    of_layers = [frame for frame in inner if frame.filename.startswith(LAYERS)]
    for frame in (of_users or of_layers)[-1:]:
        return f"{frame.filename}:{frame.lineno} in {frame.name}: {frame.line}"
    return ""


@contextlib.contextmanager
def as_export_error(lines: Lines) -> Iterator[None]:
    """What torch raises where it does not trace a model, as an :class:`ExportError`."""
    try:
        yield
    except (ExportError, CaptureError, SameGradient):
        raise
    except Exception as error:  # torch's, whatever it is
        where = _line_of(error) or lines.of(str(error))
        raise ExportError(f"{_reason(error)}{f', at {where}' if where else ''}") from error


def _reason(error: Exception) -> str:
    """Why torch does not trace a training step, in a sentence."""
    from torch._subclasses import fake_tensor

    first = str(error).strip().partition("\n")[0]
    func = getattr(error, "func", None)
    name = op_name(func) if isinstance(func, torch._ops.OpOverload) else ""
    if isinstance(error, fake_tensor.DynamicOutputShapeException) and name:
        return (
            f"{name} makes a tensor whose size depends on numbers that a step computes, and the "
            "sizes of a training step follow from those of its batch alone"
        )
    if isinstance(error, fake_tensor.DataDependentOutputException):
        return (
            f"{name} reads a number of a tensor into Python (an `if`, `float(...)` or "
            "`.item()`), and in a training step it may be another one each time"
        )
    if isinstance(error, fake_tensor.UnsupportedOperatorException) and name:
        return f"torch does not trace {name}"
    # The second, of parameters that need no gradient, has no text in torch 2.8.
    inner = traceback.extract_tb(error.__traceback__)[-1].name
    if "requires gradients, and received a mutation" in first or inner == "from_tracing_metadata":
        return (
            "The model writes to one of its parameters when it is called, as an embedding with "
            "max_norm does"
        )
    if "marked as the loss, but it does not require gradients" in first:
        return (
            "The loss of the training step has no gradient: no parameter that is trained reaches "
            "it through operators that have one"
        )
    return f"torch does not trace the training step: {type(error).__name__}: {first}"


# -- graphs -------------------------------------------------------------------------------------


class SameGradient(Exception):
    """Two parameters have one gradient, which torch's signature of a graph does not take."""


@contextlib.contextmanager
def _without_onednn() -> Iterator[None]:
    """Trace the parts of layers for which oneDNN has one operator, and ONNX none: an LSTM."""
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)


@contextlib.contextmanager
def _joining(lines: Lines, has_gradient: list[bool]) -> Iterator[None]:
    """Have torch trace a joint graph with the lines of its nodes the second time too, in which it
    flattens what the graph takes; and with zeros where a tensor that needs a gradient has none,
    which torch refuses. ``has_gradient`` gets which of these tensors have one."""
    from torch._functorch import aot_autograd

    def completed(run: Callable[..., Any], given: Sequence[Any], tangents: Any) -> Any:
        with torch.no_grad():  # gradients of gradients, which some operators lack, are not asked
            results, gradients = run(given, tangents)
        pairs = [*zip(given, gradients, strict=True)]
        needed = [isinstance(x, torch.Tensor) and x.requires_grad for x, _ in pairs]
        has_gradient[:] = [g is not None for (_, g), n in zip(pairs, needed, strict=True) if n]
        return results, [
            torch.zeros_like(x) if n and g is None else g
            for (x, g), n in zip(pairs, needed, strict=True)
        ]

    def interpreted(export: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            graph, *others = export(*args, **kwargs)
            lines.give_gradients(graph)
            return (functools.partial(completed, interpreter_of(graph)), *others)

        return call

    with swapped(vars(aot_autograd), {"_aot_export_function": interpreted}):
        yield


def _drop_zeros(graph: torch.fx.GraphModule, has_gradient: Sequence[bool]) -> None:
    """Have the last results of a graph, its gradients, be None where a tensor has none."""
    results = results_of(graph.graph)
    for place, kept in enumerate(has_gradient, len(results) - len(has_gradient)):
        results[place] = results[place] if kept else None
    set_results(graph, results)


def set_results(graph: torch.fx.GraphModule, results: Sequence[Any]) -> None:
    """Have a graph give these results."""
    (output,) = graph.graph.find_nodes(op="output")
    output.args = (tuple(results),)
    graph.graph.eliminate_dead_code()
    graph.recompile()


def interpreter_of(graph: torch.fx.GraphModule) -> Callable[..., Any]:
    """A graph as a function that is traced with the lines of its nodes."""

    def call(*args: Any) -> Any:
        with fx_traceback.preserve_node_meta():
            return torch.fx.Interpreter(graph).run(*args)

    return call


def trace(
    module: torch.nn.Module, fakes: Fakes, leaves: Sequence[Any], lines: Lines, *, joint: bool
) -> tuple[torch.fx.GraphModule, Any]:
    """The graph of a module of its parameters, buffers and arguments, and its signature.

    The module enters ``lines`` where it calls the model. The gradient of a parameter that the
    loss does not reach is None.

    Raises:
        ExportError: torch does not trace it.
        SameGradient: see there.

    """
    from torch._functorch.aot_autograd import aot_export_module

    has_gradient: list[bool] = []
    table = get_standard_table(OxsDispatcher())
    for draws in SeededDraws.operators():
        table.pop(draws, None)  # they are written when the seed is known
    with (
        as_export_error(lines),
        fakes.tracing(),
        _without_onednn(),
        correct_tracing(),
        through_compiled_parts(),
        without_torchs_errors(),
        without_checks(),
        _joining(lines, has_gradient) if joint else contextlib.nullcontext(),
    ):
        try:
            graph, signature = aot_export_module(
                module,
                tuple(leaves),
                trace_joint=joint,
                output_loss_index=0 if joint else None,
                decompositions=table,
                dynamic_shapes=fakes.dynamic,
            )
        except AssertionError as error:
            if "gradients_to_parameters" not in str(error):
                raise
            raise SameGradient from error
    assert isinstance(graph, torch.fx.GraphModule)
    if not all(has_gradient):
        _drop_zeros(graph, has_gradient)
    return graph, signature
