"""onnx_custom_backend: a backend of ``torch.compile`` whose every step can be chosen and seen.

It takes graphs of ATen operators, when it is the compiler of ``aot_autograd``, and those of
Dynamo, which it lowers through AOTAutograd itself.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch

from dort_rewriter.aten import is_mutation
from dort_rewriter.backends.arguments import (
    CustomBackendOptions,
    level_name,
    log_as_asked,
    select_patterns,
    takes_fields_of,
)
from dort_rewriter.capture.aot import compile_with_aot
from dort_rewriter.capture.interface import has_tree
from dort_rewriter.capture.lowering import is_lowered
from dort_rewriter.compiler.block import compile_graph
from dort_rewriter.compiler.provider_choice import select_providers
from dort_rewriter.compiler.safety_net import guarded, raises_at_call
from dort_rewriter.compiler.verification import copies
from dort_rewriter.export.decompositions import resolve_decomposition_table
from dort_rewriter.export.oxs_dispatcher import OxsDispatcher
from dort_rewriter.options import (
    ExportOptions,
    OptimizationOptions,
    OrtBackendOptions,
    from_mapping,
)
from dort_rewriter.plan.recipe import BuiltBlock, Recipe, RunBoxed, unboxed
from dort_rewriter.runtime.model_files import to_proto

Settings = TypeVar("Settings", bound=CustomBackendOptions)


@takes_fields_of(CustomBackendOptions)
@raises_at_call
def onnx_custom_backend(
    graph_module: torch.fx.GraphModule,
    args: Sequence[Any],
    *,
    options: OptimizationOptions | Mapping[str, Any] | None = None,
    name: str | None = None,
    **settings: Any,
) -> Callable[..., Any]:
    """Compile a graph to sessions of ONNX Runtime.

    It is given to ``torch.compile(..., backend=onnx_custom_backend)``, as it is or in a lambda
    that adds arguments, known there by name (``backend="onnx_custom"``), and to
    ``aot_autograd(fw_compiler=onnx_custom_backend)``. A graph that is not made of ATen operators
    goes through AOTAutograd first, forward and backward.

    Args:
        graph_module: a graph of Dynamo, or of ATen operators.
        args: the arguments it is compiled for.
        options: what to do with the exported models, in place of what `enable_pattern` and the
            like say. The mapping that ``torch.compile(..., options={...})`` passes may also name
            any other argument of this function.
        name: what ``torch.compile`` was given as such, which torch 2.15 passes on: not read.
        settings: the fields of :class:`CustomBackendOptions`, which says what each does.

    """
    chosen, optimization = merge_options(from_mapping(CustomBackendOptions, settings), options)
    return compile_any_graph(graph_module, args, chosen, make_recipe(chosen, optimization))


def merge_options(
    settings: Settings, options: OptimizationOptions | Mapping[str, Any] | None
) -> tuple[Settings, OptimizationOptions]:
    """The settings and the optimization, with what `options` says about both."""
    if isinstance(options, Mapping):
        # Keys of both families mean the same; an unknown one is refused below, with the closest.
        of_models = {f.name for f in dataclasses.fields(OptimizationOptions)}
        own = {k: v for k, v in options.items() if k not in of_models}
        from_mapping(type(settings), own)
        known = {f.name for f in dataclasses.fields(settings)}
        settings = dataclasses.replace(
            settings, **{k: v for k, v in options.items() if k in known}
        )
        changes = {k: v for k, v in options.items() if k in of_models}
        return settings, dataclasses.replace(_optimization(settings), **changes)
    return settings, _optimization(settings) if options is None else options


def _optimization(settings: CustomBackendOptions) -> OptimizationOptions:
    patterns = select_patterns(settings.enable_pattern, settings.disable_pattern)
    return OptimizationOptions(
        remove_unused=settings.optimize,
        patterns=patterns if settings.optimize else None,
        processor=settings.processor,
        order=settings.order_algorithm,
        dump_applied_patterns=settings.dump_patterns,
        verbose=settings.verbose,
    )


def make_recipe(settings: CustomBackendOptions, optimization: OptimizationOptions) -> Recipe:
    """What these settings do with a graph of ATen operators."""
    log_as_asked(settings.verbose)
    backend = _backend_options(settings, optimization)
    keeper = None if settings.storage is None else StorageKeeper(settings.storage)
    return Recipe(
        dispatcher=settings.dispatcher or OxsDispatcher(),
        options=backend,
        select_providers=functools.partial(select_providers, backend),
        on_built=None if keeper is None else keeper.keep,
        around=None if keeper is None else keeper.watch,
        build_now=True,
        rename_inputs=settings.rename_inputs,
        dump_prefix=settings.dump_prefix,
    )


def _backend_options(
    settings: CustomBackendOptions, optimization: OptimizationOptions
) -> OrtBackendOptions:
    providers, transforms = settings.providers, settings.pre_ort_model_transforms
    if transforms is not None and not isinstance(transforms, Sequence):
        transforms = (transforms,)
    default = OrtBackendOptions()
    return OrtBackendOptions(
        preferred_execution_providers=[providers] if isinstance(providers, str) else providers,
        infer_execution_providers=providers is None,
        pre_ort_model_transforms=transforms,
        target_opset=settings.target_opset or default.target_opset,
        optimization=optimization,
        ort_optimization_level=level_name(settings.ort_optimization_level),
        fallback=not settings.raise_exc,
    )


def compile_any_graph(
    graph_module: torch.fx.GraphModule,
    args: Sequence[Any],
    settings: CustomBackendOptions,
    recipe: Recipe,
) -> Callable[..., Any]:
    """Compile a graph of ATen operators as it is, any other through AOTAutograd."""
    if is_lowered(graph_module) and not _needs_aot(graph_module, args):
        return unboxed(compile_graph(graph_module, recipe), graph_module)
    table = from_mapping(ExportOptions, settings.export_options).table
    return guarded(
        lambda: compile_with_aot(
            graph_module,
            args,
            compile_graph=lambda graph, _: compile_graph(graph, recipe),
            decompositions=resolve_decomposition_table(table, recipe.dispatcher),
            verbose=recipe.trace.verbose,
        ),
        lambda: graph_module.forward,
        graph_module,
        args,
        recipe.options,
    )


def _needs_aot(graph_module: torch.fx.GraphModule, args: Sequence[Any]) -> bool:
    """Whether AOTAutograd has work to do on a graph of ATen operators.

    It makes the backward graph, and functions of what writes to tensors. NOTE: it has done so for
    the graphs it made itself, whose arguments are fake.
    """
    if any(isinstance(a, torch._subclasses.FakeTensor) for a in args):
        return False
    tensors = [*(a for a in args if isinstance(a, torch.Tensor)), *graph_module.parameters()]
    trains = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
    writes = any(map(is_mutation, graph_module.graph.nodes))
    return trains or writes or has_tree(graph_module)


class StorageKeeper:
    """Fills ``storage["instance"]``, one dictionary for each graph that runs in ONNX Runtime.

    =================== ======================================================================
    ``graph_module``    the graph of ATen operators
    ``onnx``            the model, as the session got it
    ``builder``         the exported graph: the model in memory, and its signature
    ``sess``            the ``onnxruntime.InferenceSession``; None when there is nothing to compute
    ``providers``       the names of its execution providers
    ``placement``       for each of them, its nodes by type, as the session reports them; None
                        where it has the CPU alone, or onnxruntime does not say
    ``is_dimension_in`` for each argument, whether it is a size rather than a tensor
    ``is_dimension_out`` for each result, the same
    ``inputs``          the arguments of the first run, in a list of one tuple (copies)
    ``outputs``         the results of the first run, in a list of one tuple
    =================== ======================================================================
    """

    def __init__(self, storage: dict[str, Any]) -> None:
        self.instances: list[dict[str, Any]] = storage.setdefault("instance", [])

    def keep(self, built: BuiltBlock) -> None:
        """Add a graph."""
        self.instances.append(
            {
                "graph_module": built.graph_module,
                "onnx": built.proto or to_proto(built.exported.model),
                "builder": built.exported,
                "sess": _session(built),
                "providers": _providers(built),
                "placement": None if built.session is None else built.session.placement,
                "is_dimension_in": tuple(s.kind == "int" for s in built.signature.inputs),
                "is_dimension_out": tuple(s.kind == "int" for s in built.signature.outputs),
                "inputs": [],
                "outputs": [],
            }
        )

    def watch(self, graph_module: torch.fx.GraphModule, run: RunBoxed) -> RunBoxed:
        """Keep what the first run takes and gives."""
        kept = next(i for i in reversed(self.instances) if i["graph_module"] is graph_module)

        def call(args: list[Any]) -> Any:
            if kept["inputs"]:
                return run(args)
            # NOTE: copies: a program changes parameters, gradients and results in place later.
            kept["inputs"].append(tuple(copies(args)))
            results = run(args)
            kept["outputs"].append(tuple(copies(results)))
            return results

        return call


def _session(built: BuiltBlock) -> Any:
    if built.session is not None:
        return built.session.ort
    return getattr(built.runner, "model", None)


def _providers(built: BuiltBlock) -> list[str]:
    if built.session is not None:
        return [p.name for p in built.session.providers]
    provider = getattr(built.runner, "provider", None)
    return [] if provider is None else [provider]
