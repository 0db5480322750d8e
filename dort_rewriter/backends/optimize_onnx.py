"""optimize_onnx: the rewriting rules, on any ONNX model."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias, overload

import onnx
import onnx_ir as ir
from onnx_ir.passes.common import LiftConstantsToInitializersPass, ShapeInferencePass

from dort_rewriter.errors import OptimizeError
from dort_rewriter.graph.schemas import in_standard
from dort_rewriter.optimize.pipeline import optimize
from dort_rewriter.optimize.rewriting import OptimizeReport
from dort_rewriter.options import OptimizationOptions, from_mapping
from dort_rewriter.runtime.kernel_query import kernel_query
from dort_rewriter.runtime.model_files import from_message, read_model, to_proto
from dort_rewriter.runtime.providers import CPU, CUDA
from dort_rewriter.runtime.session import try_session

Options = OptimizationOptions | Mapping[str, Any] | None
AnyModel: TypeAlias = "onnx.ModelProto | str | os.PathLike[str]"

_PROVIDERS = {"CPU": CPU, "CUDA": CUDA, "any": CPU}


@overload
def optimize_onnx(
    model: AnyModel, options: Options = ..., *, return_optimize_report: Literal[False] = ...
) -> onnx.ModelProto: ...


@overload
def optimize_onnx(
    model: AnyModel, options: Options = ..., *, return_optimize_report: Literal[True]
) -> tuple[onnx.ModelProto, OptimizeReport]: ...


def optimize_onnx(
    model: AnyModel, options: Options = None, *, return_optimize_report: bool = False
) -> onnx.ModelProto | tuple[onnx.ModelProto, OptimizeReport]:
    """An optimized copy of an ONNX model.

    Args:
        model: a model, or the name of a file.
        options: what to do (:class:`OptimizationOptions`), as in
            ``{"patterns": "default+onnxruntime"}``.
        return_optimize_report: also return what each rule did.

    Raises:
        OptimizeError: the file is no ONNX model.
        OptionError: an option, or the name of a pattern, is unknown.

    """
    settings = from_mapping(OptimizationOptions, options)
    loaded = _load(model)
    LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(loaded)
    ShapeInferencePass(check_type=False, strict_mode=False, data_prop=True)(loaded)
    report = optimize_model(loaded, settings)
    proto = to_proto(loaded)
    return (proto, report) if return_optimize_report else proto


def _load(model: AnyModel) -> ir.Model:
    source = "the message" if isinstance(model, onnx.ModelProto) else repr(os.fspath(model))
    try:
        loaded = from_message(model) if isinstance(model, onnx.ModelProto) else read_model(model)
        ir.external_data.load_to_model(loaded)  # what is returned belongs to no folder
    except OSError as error:
        raise OptimizeError(f"{source} cannot be read: {error}.") from error
    except ValueError as error:
        raise OptimizeError(f"{source} is no ONNX model: {error}.") from error
    return loaded


def kernels_for(options: OptimizationOptions) -> Callable[..., bool]:
    """Which kernels there are where ``options.processor`` says that a model runs."""
    any_runtime = options.processor == "any"
    return in_standard if any_runtime else kernel_query(_PROVIDERS[options.processor])


def optimize_model(model: ir.Model, options: OptimizationOptions) -> OptimizeReport:
    """Optimize a model in place for the provider of ``options.processor``."""
    provider = _PROVIDERS[options.processor]
    return optimize(
        model,
        options,
        has_kernel=kernels_for(options),
        make_session=functools.partial(try_session, provider=provider),
    )
