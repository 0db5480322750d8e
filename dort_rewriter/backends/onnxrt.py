"""The ``onnxrt`` backend: a class for torch >= 2.9, the same functions behind torch's own before.

``call_backend``, ``compile_graph`` and ``accelerated_call`` take the backend object as an
argument: ours, or an instance of torch's ``OrtBackend`` that the hook lends. They rely on what
both have: ``_options``, ``_all_ort_execution_info``, ``execution_count``, ``_select_eps``.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch

from dort_rewriter import env
from dort_rewriter.backends.arguments import with_mode
from dort_rewriter.backends.blocks import BuiltBlock
from dort_rewriter.backends.compilation import Block, cut
from dort_rewriter.backends.compilation import compile_graph as compile_aten_graph
from dort_rewriter.backends.execution_info import ByGraph, ExecutionInfo, ExecutionInfoTable
from dort_rewriter.backends.instances import (
    as_own,
    clear_instances,
    instance_for,
    instance_of_torch,
    instances_of,
    own_options,
)
from dort_rewriter.backends.recipe import Recipe, RunBoxed
from dort_rewriter.backends.safety_net import guarded, raises_options_at_call
from dort_rewriter.backends.session_call import run_session
from dort_rewriter.capture.aot import compile_with_aot
from dort_rewriter.capture.metadata import complete_metadata
from dort_rewriter.errors import OptionError
from dort_rewriter.export.decompositions import get_decomposition_table, get_tracing_table
from dort_rewriter.export.oxs_dispatcher import OxsDispatcher
from dort_rewriter.options import OrtBackendOptions, from_mapping
from dort_rewriter.runtime.arenas import give_back
from dort_rewriter.runtime.providers import CPU, ProviderSpec, infer

__all__ = [
    "OrtBackend",
    "OrtBackendOptions",
    "OrtExecutionProvider",
    "accelerated_call",
    "call_backend",
    "clear_instances",
    "compile_graph",
    "instance_of_torch",
    "instances_of",
    "is_onnxrt_backend_supported",
    "own_options",
    "serves",
    "torch_compile_backend",
]

OrtExecutionProvider: TypeAlias = str | tuple[str, Mapping[str, Any]]
"""The name of an execution provider, or a pair of its name and its options."""

OrtExecutionInfoPerSession: TypeAlias = ExecutionInfo
OrtExecutionInfoForAllGraphModules: TypeAlias = ExecutionInfoTable


def is_onnxrt_backend_supported() -> bool:
    """Tell whether the packages that the backend needs are installed."""
    needed = ("onnx", "onnx_ir", "onnxruntime", "onnxscript")
    return all(importlib.util.find_spec(name) is not None for name in needed)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExporterRecord:
    """What programs read of the exporter of a backend."""

    decomposition_table: Mapping[torch._ops.OpOverload, Callable[..., Any]]
    """For ``aot_autograd(decompositions=...)``."""
    onnxfunction_dispatcher: OxsDispatcher
    """Finds the converter of an operator."""


class OrtBackend:
    """Compiles graphs to sessions of ONNX Runtime; what it does not convert runs in torch."""

    def __init__(self, options: OrtBackendOptions | Mapping[str, Any] | None = None) -> None:
        self._options = from_mapping(OrtBackendOptions, options)
        self._all_ort_execution_info = ExecutionInfoTable()
        self._assert_allclose_to_baseline = False
        self.execution_count = 0
        self.run = run_session

    def __call__(
        self,
        graph_module: torch.fx.GraphModule,
        args: Sequence[Any],
        *,
        options: Mapping[str, Any] | None = None,
        mode: str | None = None,
    ) -> Callable[..., Any]:
        """Compile a graph of Dynamo as :func:`torch_compile_backend` does, its options known."""
        return call_backend(self, graph_module, args, options=options, mode=mode)

    def compile(
        self, graph_module: torch.fx.GraphModule, args: Sequence[Any]
    ) -> Callable[..., Any]:
        """Compile a graph of ATen operators."""
        return compile_graph(self, graph_module, args)

    def _ort_acclerated_call(
        self, graph_module: torch.fx.GraphModule, *args: Any, **kwargs: Any
    ) -> Any:
        """Run a graph of ATen operators, convertible as a whole. The spelling is torch's."""
        return accelerated_call(self, graph_module, *args, **kwargs)

    @functools.cached_property
    def _resolved_onnx_exporter_options(self) -> ExporterRecord:
        """What AOTAutograd needs when it is given this backend by hand."""
        dispatcher = make_dispatcher()
        return ExporterRecord(
            decomposition_table=get_decomposition_table(dispatcher),
            onnxfunction_dispatcher=dispatcher,
        )

    @functools.cached_property
    def _supported_ops(self) -> Any:
        """Decides which nodes run in ONNX Runtime, as ``torch.fx`` partitioners ask for it."""
        from torch.fx.passes.operator_support import create_op_support

        dispatcher = make_dispatcher()
        return create_op_support(
            lambda _, node: node.op == "call_function" and dispatcher.refusal(node) is None
        )

    def _select_eps(
        self, graph_module: torch.fx.GraphModule, *args: Any
    ) -> Sequence[tuple[str, Mapping[str, Any]]]:
        """Execution providers: preferred, inferred from the devices, then the default."""
        return select_providers(self._options, graph_module, args)

    def reset(self) -> None:
        """Forget every session; what is compiled and still in use keeps its own."""
        self._all_ort_execution_info.clear()
        give_back()

    @staticmethod
    def get_cached_instance_for_options(
        options: OrtBackendOptions | Mapping[str, Any] | None = None,
    ) -> OrtBackend:
        """The backend made before for equal options, or a new one.

        Options with ``ort_session_options`` are never shared: nothing tells whether two are equal.
        """
        options = from_mapping(OrtBackendOptions, options)
        return instance_for(OrtBackend, options, functools.partial(OrtBackend, options))

    @staticmethod
    def get_cached_instances() -> tuple[OrtBackend, ...]:
        """The backends kept for reuse."""
        return instances_of(OrtBackend)

    @staticmethod
    def clear_cached_instances() -> None:
        """Forget the backends kept for reuse, and their sessions."""
        clear_instances(OrtBackend)


@raises_options_at_call
def torch_compile_backend(
    graph_module: torch.fx.GraphModule,
    args: Sequence[Any],
    *,
    options: OrtBackendOptions | Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compile a graph of Dynamo: what ``torch.compile(backend="onnxrt")`` calls.

    Of torch's modes, ``"max-autotune"`` is the option ``autotune``; the others ask for nothing
    that is not done anyway.
    """
    chosen = with_mode(from_mapping(OrtBackendOptions, options), mode)
    return OrtBackend.get_cached_instance_for_options(chosen)(graph_module, args)


@raises_options_at_call
def compile_by_name(
    build: Callable[..., Any],
    graph_module: torch.fx.GraphModule,
    args: Sequence[Any],
    *,
    options: Any = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compile a graph of Dynamo as :func:`torch_compile_backend` does, by that of torch."""
    if mode is not None:
        own = OrtBackendOptions() if options is None else options
        options = with_mode(own, mode)  # torch.compile takes options or a mode, not both
    compiled: Callable[..., Any] = build(graph_module, args, options=options)
    return compiled


def _reset() -> None:
    for backend in OrtBackend.get_cached_instances():
        backend.reset()


torch_compile_backend.reset = _reset  # type: ignore[attr-defined]  # torch._dynamo.reset() calls it


# -- shared with the hook on torch's own class ------------------------------------------------


def make_dispatcher() -> OxsDispatcher:
    """The dispatcher that the environment asks for."""
    return OxsDispatcher(own_converters=env.read("ONNXRT_CHANGE_REWRITER") != "0")


@raises_options_at_call
def call_backend(
    backend: Any,
    graph_module: torch.fx.GraphModule,
    args: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compile a graph of Dynamo, forward and backward."""
    if options:
        from_mapping(OrtBackendOptions, options)  # an unknown name is said first
        raise OptionError(
            "A backend that is made already has its options: "
            "OrtBackend({...}), or backend='onnxrt' and options={...}."
        )
    chosen = with_mode(_options(backend), mode)
    if not backend._options.use_aot_autograd:
        compiled: Callable[..., Any] = backend.compile(graph_module, args)
        return compiled
    return guarded(
        lambda: compile_with_aot(
            graph_module,
            args,
            compile_graph=lambda graph, _: compile_aten_graph(
                graph, _recipe_of_aot(backend, chosen)
            ),
            decompositions=get_tracing_table(make_dispatcher()),
            compile_inference=functools.partial(_compile_inference, backend, chosen),
        ),
        lambda: _in_torch(graph_module),
        graph_module,
        fallback=chosen.fallback,
    )


def _compile_inference(
    backend: Any,
    options: OrtBackendOptions,
    graph_module: torch.fx.GraphModule,
    weights: frozenset[str],
) -> Callable[..., Any]:
    recipe = _recipe_of_aot(backend, options)
    if recipe.options.freeze:
        recipe = dataclasses.replace(recipe, weights=weights)
    return compile_aten_graph(graph_module, recipe)


def compile_graph(
    backend: Any, graph_module: torch.fx.GraphModule, args: Sequence[Any]
) -> Callable[..., Any]:
    """Compile a graph of ATen operators: to one block, or to a graph some parts of which are."""

    def compiled() -> Callable[..., Any]:
        complete_metadata(graph_module, args)
        recipe = make_recipe(backend)
        partition = cut(graph_module, recipe)
        return Block(graph_module, recipe) if partition.whole else partition.graph_module

    fallback = _options(backend).fallback
    return guarded(compiled, lambda: _in_torch(graph_module), graph_module, fallback=fallback)


def _in_torch(graph_module: torch.fx.GraphModule) -> Callable[..., Any]:
    return graph_module.forward


def serves(backend: Any, graph_module: torch.fx.GraphModule) -> bool:
    """Tell whether a graph has a session of ours."""
    return graph_module in _blocks


_blocks: weakref.WeakKeyDictionary[torch.fx.GraphModule, Callable[..., Any]] = (
    weakref.WeakKeyDictionary()
)
"""The blocks built for graphs that torch's own class compiled."""


def accelerated_call(
    backend: Any, graph_module: torch.fx.GraphModule, *args: Any, **kwargs: Any
) -> Any:
    """Run a graph that was found convertible, building its session at the first call."""
    block = _blocks.get(graph_module)
    if block is None:

        def compiled() -> Callable[..., Any]:
            complete_metadata(graph_module, args)
            return Block(graph_module, make_recipe(backend))

        fallback = _options(backend).fallback
        block = _blocks[graph_module] = guarded(
            compiled, lambda: _in_torch(graph_module), graph_module, fallback=fallback
        )
    return block(*args)


def make_recipe(backend: Any, options: OrtBackendOptions | None = None) -> Recipe:
    """What a backend does with a graph of ATen operators, with its options or others."""
    options = options or _options(backend)
    return Recipe(
        dispatcher=make_dispatcher(),
        options=options,
        select_providers=_selection(backend, options),
        on_built=functools.partial(_record, backend),
        around=functools.partial(_watch, backend),
    )


def _recipe_of_aot(backend: Any, options: OrtBackendOptions) -> Recipe:
    """The recipe of graphs that only their own calls run: nobody else feeds the models."""
    return dataclasses.replace(make_recipe(backend, options), as_stored=True)


def _selection(
    backend: Any, options: OrtBackendOptions
) -> Callable[[torch.fx.GraphModule, Sequence[Any]], Sequence[tuple[str, Mapping[str, Any]]]]:
    """How a backend selects its providers: its own method, but for that of torch's class.

    NOTE: torch's puts the CPU before CUDA, and leaves out which device.
    """
    if (backend._select_eps.__module__ or "").startswith("torch."):
        return functools.partial(select_providers, options)
    return lambda graph_module, args: backend._select_eps(graph_module, *args)


def _options(backend: Any) -> OrtBackendOptions:
    """The options of a backend; those of torch's class have some of our fields."""
    return as_own(backend._options)


def _record(backend: Any, built: BuiltBlock) -> None:
    table = backend._all_ort_execution_info
    known = table.execution_info_per_graph_module
    if not isinstance(known, weakref.WeakKeyDictionary):
        # That of torch's class is a dict: graphs and sessions would outlive torch._dynamo.reset().
        table.execution_info_per_graph_module = ByGraph(known)
    table.cache_session_execution_info(built.graph_module, ExecutionInfo(built))


def _watch(backend: Any, graph_module: torch.fx.GraphModule, run: RunBoxed) -> RunBoxed:
    """Count the runs of a block, and compare them with torch when the backend asks for it."""

    def call(args: list[Any]) -> Any:
        given = list(args) if backend._assert_allclose_to_baseline else None
        results = run(args)
        backend.execution_count += 1
        if given is None:
            return results
        expected = graph_module.forward(*given)
        expected = expected if isinstance(expected, list | tuple) else (expected,)
        torch.testing.assert_close(list(results), list(expected))
        return results

    return call


def select_providers(
    options: OrtBackendOptions, graph_module: torch.fx.GraphModule, args: Sequence[Any]
) -> list[tuple[str, Mapping[str, Any]]]:
    """The providers of a session, best first, each once."""
    wanted: list[ProviderSpec] = list(options.preferred_execution_providers or ())
    if options.infer_execution_providers:
        devices = [a.device for a in args if isinstance(a, torch.Tensor)]
        wanted.extend(infer(devices or _result_devices(graph_module)))
    wanted.extend(options.default_execution_providers or (CPU,))
    chosen: dict[str, Mapping[str, Any]] = {}
    for spec in wanted:
        if isinstance(spec, str):
            chosen.setdefault(spec, {})
        elif isinstance(spec, tuple):
            chosen.setdefault(spec[0], spec[1] or {})
        else:  # inferred: what the user left open follows the tensors, as the device's number
            chosen[spec.name] = {**spec.options, **chosen.get(spec.name, {})}
    return list(chosen.items())


def _result_devices(graph_module: torch.fx.GraphModule) -> list[torch.device]:
    output = next(n for n in graph_module.graph.nodes if n.op == "output")
    values = [n.meta.get("val") for n in output.all_input_nodes]
    return [v.device for v in values if isinstance(v, torch.Tensor)]
