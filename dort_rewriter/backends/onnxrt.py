"""The ``onnxrt`` backend: a class for torch >= 2.9, and what the hook puts into torch's before.

The names listed here are published: the hook, and files that ``dort-rewriter patch`` changed, find
them in this module.

``make_aot_ort`` is the same as a pair, its options spelled as arguments.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch

from dort_rewriter import notebook
from dort_rewriter.backends.arguments import level_name, log_as_asked, select_patterns, with_mode
from dort_rewriter.backends.execution_info import ExecutionInfo, ExecutionInfoTable, run_session
from dort_rewriter.backends.instances import (
    built_by_torch,
    clear_instances,
    fields_of_torch,
    instance_for,
    instance_of_torch,
    instances_of,
)
from dort_rewriter.backends.onnxrt_graphs import (
    accelerated_call,
    call_backend,
    compile_graph,
    make_dispatcher,
    serves,
)
from dort_rewriter.compiler.provider_choice import select_providers
from dort_rewriter.compiler.safety_net import forget_warnings, raises_at_call
from dort_rewriter.export.decompositions import get_decomposition_table
from dort_rewriter.export.oxs_dispatcher import OxsDispatcher
from dort_rewriter.options import OptimizationOptions, OrtBackendOptions, from_mapping
from dort_rewriter.runtime.arenas import give_back

__all__ = [
    "OrtBackend",
    "OrtBackendOptions",
    "OrtExecutionProvider",
    "accelerated_call",
    "built_by_torch",
    "call_backend",
    "clear_instances",
    "compile_graph",
    "fields_of_torch",
    "instance_of_torch",
    "instances_of",
    "is_onnxrt_backend_supported",
    "make_aot_ort",
    "serves",
    "torch_compile_backend",
]

OrtExecutionProvider: TypeAlias = str | tuple[str, Mapping[str, Any]]
"""The name of an execution provider, or a pair of its name and its options."""

OrtExecutionInfoPerSession: TypeAlias = ExecutionInfo
OrtExecutionInfoForAllGraphModules: TypeAlias = ExecutionInfoTable


def is_onnxrt_backend_supported() -> bool:
    """Whether the packages that the backend needs are installed."""
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

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies have the same options, and compile again: compiled modules hold a backend."""
        return (
            type(self),
            (self._options,),
            {"_assert_allclose_to_baseline": self._assert_allclose_to_baseline},
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> OrtBackend:
        return copy.copy(self)  # session options cannot be copied

    def __repr__(self) -> str:
        counts = ", ".join(f"{n} {what}" for what, n in self._counts().items())
        options = "".join(f" {name}={value!r}" for name, value in self._chosen())
        return f"<OrtBackend{options}: {counts}>"

    def _repr_html_(self) -> str:
        """Its options and what it has compiled, for notebooks."""
        return "".join(
            [
                notebook.heading("OrtBackend"),
                notebook.table([(name, repr(value)) for name, value in self._chosen()]),
                notebook.table(self._counts().items()),
            ]
        )

    def _chosen(self) -> list[tuple[str, Any]]:
        """The options that are not the usual ones."""
        usual = OrtBackendOptions()
        named = [(f.name, getattr(self._options, f.name)) for f in dataclasses.fields(usual)]
        return [(name, value) for name, value in named if value != getattr(usual, name)]

    def _counts(self) -> dict[str, int]:
        table = self._all_ort_execution_info.execution_info_per_graph_module
        models = sum(len(infos) for infos in list(table.values()))
        return {"graphs": len(table), "models": models, "runs": self.execution_count}

    def __call__(
        self,
        graph_module: torch.fx.GraphModule,
        args: Sequence[Any],
        *,
        options: Mapping[str, Any] | None = None,
        mode: str | None = None,
        name: str | None = None,
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

        Options with ``ort_session_options`` are never shared: two of them cannot be compared.
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


@raises_at_call
def torch_compile_backend(
    graph_module: torch.fx.GraphModule,
    args: Sequence[Any],
    *,
    options: OrtBackendOptions | Mapping[str, Any] | None = None,
    mode: str | None = None,
    name: str | None = None,
) -> Callable[..., Any]:
    """Compile a graph of Dynamo: what ``torch.compile(backend="onnxrt")`` calls.

    Of torch's modes, ``"max-autotune"`` is the option ``autotune``; the others ask for nothing
    that is not done anyway.

    Args:
        graph_module: a graph of Dynamo, or of ATen operators.
        args: the arguments it is compiled for.
        options: what :class:`OrtBackendOptions` has, as one or as a mapping.
        mode: one of torch's modes.
        name: what ``torch.compile`` was given as such, which torch 2.15 passes on: not read.

    Raises:
        OptionError: an option is unknown or has a value that cannot be honoured.
    """
    chosen = with_mode(from_mapping(OrtBackendOptions, options), mode)
    return OrtBackend.get_cached_instance_for_options(chosen)(graph_module, args)


@raises_at_call
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
    forget_warnings()
    for backend in OrtBackend.get_cached_instances():
        backend.reset()


torch_compile_backend.reset = _reset  # type: ignore[attr-defined]  # torch._dynamo.reset() calls it

Backend = Callable[[torch.fx.GraphModule, Sequence[Any]], Callable[..., Any]]


def make_aot_ort(
    dynamic: bool = False,
    rewrite: bool = True,
    verbose: int = 0,
    ort_optimization_level: str | None = None,
    enable_pattern: str | Sequence[Any] | None = "default",
    disable_pattern: str | Sequence[str] | None = None,
    processor: str = "CPU",
    *,
    target_opset: int = 18,
    providers: Sequence[str | tuple[str, Mapping[str, Any]]] | None = None,
    fallback: bool = True,
) -> tuple[OrtBackend, OrtBackend]:
    """A backend for ``torch.compile``, twice: for static and for dynamic use.

    Args:
        dynamic: whether the graphs will have symbolic sizes; the backend takes both, this only
            documents the intent (``torch.compile(..., dynamic=...)`` decides).
        rewrite: optimize the exported models; False leaves them as they are exported.
        verbose: 1 logs a summary of each model, more logs each rewriting rule.
        ort_optimization_level: ONNX Runtime's own optimizations: ``"disable"``, ``"basic"``,
            ``"extended"``, ``"layout"``, ``"all"``, or its names (``"ORT_DISABLE_ALL"``); None
            leaves its default.
        enable_pattern: the rules to apply (``"default+onnxruntime"``).
        disable_pattern: rules to leave out of them.
        processor: ``"CPU"`` or ``"CUDA"``.
        target_opset: the opset of the exported models.
        providers: execution providers to prefer.
        fallback: leave to torch what cannot be converted, or raise.

    """
    patterns = select_patterns(enable_pattern, disable_pattern) if rewrite else None
    log_as_asked(verbose)
    options = OrtBackendOptions(
        preferred_execution_providers=providers,
        ort_optimization_level=level_name(ort_optimization_level),
        target_opset=target_opset,
        fallback=fallback,
        optimization=OptimizationOptions(
            patterns=patterns, processor=processor, verbose=verbose, remove_unused=rewrite
        ),
    )
    backend = OrtBackend(options)
    return backend, backend
