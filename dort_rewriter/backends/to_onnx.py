"""to_onnx: a module, function, exported program or FX graph becomes an optimized ONNX model."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, overload

import onnx
import torch

from dort_rewriter.aten import rebase_strided
from dort_rewriter.backends.optimize_onnx import kernels_for, optimize_model
from dort_rewriter.capture.interface import flatten_interface, has_tree
from dort_rewriter.capture.lowering import is_lowered, lower
from dort_rewriter.compiler.building import add_casts_of_standard
from dort_rewriter.errors import ExportError
from dort_rewriter.export.decompositions import get_standard_table, resolve_decomposition_table
from dort_rewriter.export.dispatcher import Dispatcher
from dort_rewriter.export.interpreter import OPSETS, ExportedGraph, convert_graph
from dort_rewriter.export.names import give_way, read_names, rename_symbols
from dort_rewriter.export.oxs_dispatcher import OxsDispatcher
from dort_rewriter.optimize.float64_forms import write_float64
from dort_rewriter.optimize.older_opsets import lower_opset
from dort_rewriter.optimize.rewriting import OptimizeReport
from dort_rewriter.options import ExportOptions, OptimizationOptions, from_mapping
from dort_rewriter.runtime.model_files import check_target, save_model, to_proto
from dort_rewriter.torch_defects.metadata import correct_metadata
from dort_rewriter.trace import CompileTrace

if TYPE_CHECKING:
    from typing_extensions import Unpack

logger = logging.getLogger(__name__)

_FIRST = 13
"""Below it, too many operators take as attributes what later ones take as inputs."""

_STANDARD = ("", "ai.onnx")


@dataclass(frozen=True)
class Opsets:
    """The opsets of a model."""

    standard: int
    """That of the standard domain."""
    others: Mapping[str, int] = field(default_factory=dict)
    """Those of other domains."""

    @property
    def written(self) -> int:
        """The one the converters write; a model of an older one is made of it."""
        return max(self.standard, OPSETS.start)


def _read_opsets(target: int | Mapping[str, int]) -> Opsets:
    """Read ``target_opset``: a number, or a number for each domain."""
    if isinstance(target, Mapping):
        _check_domains(target)
        standard = next((target[d] for d in _STANDARD if d in target), OPSETS.start)
        others = {d: v for d, v in target.items() if d not in _STANDARD}
    else:
        standard, others = target, {}
    for version in (standard, *others.values()):
        if not isinstance(version, int) or isinstance(version, bool):
            raise ExportError(
                f"target_opset is a whole number, or one for each domain, not {target!r}."
            )
    if not _FIRST <= standard < OPSETS.stop:
        raise ExportError(
            f"Opset {standard} is not supported: choose from {_FIRST} to {OPSETS.stop - 1}, the "
            f"newest that the installed onnx knows."
        )
    return Opsets(standard, others)


def _check_domains(target: Mapping[str, int]) -> None:
    for domain, version in target.items():
        if not isinstance(domain, str):
            raise ExportError(f"A domain in target_opset is a text, not {domain!r}.")
        if isinstance(version, int) and version < 1:
            raise ExportError(f"target_opset has version {version} of {domain!r}: the first is 1.")
    standard = {target[d] for d in _STANDARD if d in target}
    if len(standard) > 1:
        raise ExportError(f"target_opset has the standard domain at two versions: {target!r}.")


Options: TypeAlias = OptimizationOptions | Mapping[str, Any] | None
Source: TypeAlias = torch.nn.Module | torch.export.ExportedProgram | Callable[..., Any]
Args: TypeAlias = Sequence[Any] | torch.Tensor
Kwargs: TypeAlias = Mapping[str, Any] | None


class _Settings(TypedDict, total=False):
    """What does not change what :func:`to_onnx` returns."""

    input_names: Sequence[str] | None
    output_names: Sequence[str] | None
    target_opset: int | Mapping[str, int]
    options: Options
    export_options: ExportOptions | Mapping[str, Any] | None
    dispatcher: Dispatcher | None
    dynamic_shapes: Any
    verbose: int
    filename: str | os.PathLike[str] | None


@overload
def to_onnx(
    mod: Source,
    args: Args = ...,
    kwargs: Kwargs = ...,
    *,
    return_builder: Literal[False] = ...,
    return_optimize_report: Literal[False] = ...,
    **settings: Unpack[_Settings],
) -> onnx.ModelProto: ...


@overload
def to_onnx(
    mod: Source,
    args: Args = ...,
    kwargs: Kwargs = ...,
    *,
    return_builder: Literal[True],
    return_optimize_report: Literal[False] = ...,
    **settings: Unpack[_Settings],
) -> tuple[onnx.ModelProto, ExportedGraph]: ...


@overload
def to_onnx(
    mod: Source,
    args: Args = ...,
    kwargs: Kwargs = ...,
    *,
    return_builder: Literal[False] = ...,
    return_optimize_report: Literal[True],
    **settings: Unpack[_Settings],
) -> tuple[onnx.ModelProto, OptimizeReport]: ...


@overload
def to_onnx(
    mod: Source,
    args: Args = ...,
    kwargs: Kwargs = ...,
    *,
    return_builder: Literal[True],
    return_optimize_report: Literal[True],
    **settings: Unpack[_Settings],
) -> tuple[onnx.ModelProto, ExportedGraph, OptimizeReport]: ...


def to_onnx(
    mod: torch.nn.Module | torch.export.ExportedProgram | Callable[..., Any],
    args: Sequence[Any] | torch.Tensor = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    target_opset: int | Mapping[str, int] = 18,
    options: Options = None,
    export_options: ExportOptions | Mapping[str, Any] | None = None,
    dispatcher: Dispatcher | None = None,
    dynamic_shapes: Any = None,
    verbose: int = 0,
    return_builder: bool = False,
    return_optimize_report: bool = False,
    filename: str | os.PathLike[str] | None = None,
) -> onnx.ModelProto | tuple[Any, ...]:
    """Convert a model to ONNX.

    Random operators become those of ONNX, whose numbers ``torch.manual_seed`` does not decide.

    Args:
        mod: an ``nn.Module`` or a function (captured by ``torch.export``), an
            ``ExportedProgram``, or an FX ``GraphModule``: Dynamo's, or one of ATen operators, with
            or without metadata. Modules that a function reads are part of the model, their
            parameters under the names that it has for them.
        args: example arguments; a tensor stands for one.
        kwargs: example keyword arguments of an ``nn.Module`` or a function.
        input_names: a name for each input of the model; see ``create_input_names``.
        output_names: a name for each output of the model.
        target_opset: the opset of the standard domain, or one for each domain
            (``{"": 18, "com.microsoft": 1}``), from 13 to the newest of the installed onnx. From
            an operator's opset on it is written as one node, where the installed onnxruntime has
            a kernel for it, or does not load the opset at all.
        options: what to do with the model once exported (:class:`OptimizationOptions`).
        export_options: how to capture the graph (:class:`ExportOptions`).
        dispatcher: who converts an operator; by default this package, then torchlib.
        dynamic_shapes: as in ``torch.export.export``; a text is a dimension too. The model has the
            names of these dimensions.
        verbose: 1 logs a summary, and shows what is being done.
        return_builder: also return the :class:`ExportedGraph` (model in memory, signature).
        return_optimize_report: also return, last, what each rewriting rule did.
        filename: also write the model there, its weights beside it when they are large. In the
            model that is returned they are inside, whatever their size; beyond 2 GB it is written
            by ``onnx.save(..., save_as_external_data=True)``.

    Raises:
        UnsupportedOpError: some operators have no converter; all of them are listed.
        CaptureError: no graph could be obtained, from data-dependent control flow for example.
        ExportError: ``input_names``, ``output_names``, ``target_opset`` or ``filename`` do not
            fit.

    """
    settings = from_mapping(ExportOptions, export_options)
    optimization = from_mapping(OptimizationOptions, options)
    dispatcher = OxsDispatcher() if dispatcher is None else dispatcher
    opsets = _read_opsets(target_opset)
    input_names = read_names("input_names", input_names)
    output_names = read_names("output_names", output_names)
    if filename is not None:
        check_target(filename)
    mod, args = _flat(mod, args, dynamic_shapes is not None)
    trace = CompileTrace(verbose=verbose > 0 or optimization.verbose > 0)
    with trace.phase("capture"):
        table = resolve_decomposition_table(settings.table, dispatcher, get_standard_table)
        tries = settings.attempts
        source = lower(mod, args, kwargs, table, dynamic_shapes=dynamic_shapes, attempts=tries)
        correct_metadata(source.graph_module.graph)
        rebase_strided(source.graph_module.graph)
    with trace.phase("export", len(source.graph_module.graph.nodes)) as advance:
        exported = convert_graph(
            source.graph_module,
            dispatcher,
            opset=opsets.written,
            input_names=input_names,
            output_names=output_names,
            constants=source.constants,
            draws=True,
            domains=opsets.others,
            advance=advance,
        )
        renamed = rename_symbols(exported.model, exported.signature, source.dim_names)
        exported = ExportedGraph(exported.model, renamed)
    with trace.phase("optimize"):
        report = _optimized(exported.model, opsets, optimization)
        add_casts_of_standard(exported.model)
        give_way(exported.model, [*(input_names or ()), *(output_names or ())])
    if verbose:
        logger.info("%s nodes, inputs %s", len(exported.model.graph), exported.input_names)
    if filename is not None:
        save_model(exported.model, filename)
    proto = to_proto(exported.model)
    asked = [(return_builder, exported), (return_optimize_report, report)]
    extras = [extra for is_asked, extra in asked if is_asked]
    return (proto, *extras) if extras else proto


def _optimized(model: Any, opsets: Opsets, options: OptimizationOptions) -> OptimizeReport:
    """Optimize a model in place, and write it for the kernels and the opset that it is for."""
    report = optimize_model(model, options)
    write_float64(model, opsets.written, kernels_for(options))
    lower_opset(model, opsets.standard)
    return report


def _flat(
    mod: Any, args: Sequence[Any] | torch.Tensor, has_shapes: bool
) -> tuple[Any, Sequence[Any]]:
    """A graph, and its arguments, without the structures AOTAutograd does not take.

    One for which ``dynamic_shapes`` are given is exported as the module that it is.
    """
    # torch.onnx.export takes a single tensor too; what was compiled is what it was made of.
    args = (args,) if isinstance(args, torch.Tensor) else args
    mod = getattr(mod, "_orig_mod", getattr(mod, "_torchdynamo_orig_callable", mod))
    if not isinstance(mod, torch.fx.GraphModule) or (is_lowered(mod) and not has_tree(mod)):
        return mod, args
    if has_shapes and not is_lowered(mod):
        return mod, args
    flat = flatten_interface(mod)
    if flat is None:
        return mod, args
    return flat.graph_module, flat.pack(*args) if args else args
