"""Run PyTorch models, forward and backward, through ONNX Runtime with ``torch.compile``.

Public names are resolved when they are first used: importing the package costs nothing. What it
does is to watch for ``torch.onnx``, where the hook has its work (``DORT_DISABLE=1`` prevents it).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from dort_rewriter.hook.autoload import hook_later

__version__ = "0.1.0"

_MODULES = {
    "backends.custom": "onnx_custom_backend",
    "backends.debug": "onnx_debug_backend",
    "backends.layers": "compile_layers",
    "backends.onnxrt": "OrtBackend is_onnxrt_backend_supported make_aot_ort torch_compile_backend",
    "backends.optimize_onnx": "optimize_onnx",
    "backends.to_onnx": "to_onnx",
    "deployment.loading": "SavedModel load",
    "deployment.saving": "save",
    "deployment.training_state": "load_training_state save_training_state",
    "deployment.training_steps": "export_training_step",
    "deployment.warming": "warm_up",
    "errors": (
        "CallMismatchError CaptureError DivergenceError DortError ExecutionError "
        "ExportError HookError NotFiniteError OptimizeError OptionError "
        "ResultReachedError UnsupportedOpError"
    ),
    "export.decompositions": (
        "filter_decomposition_table get_decomposition_table get_decomposition_table_by_name"
    ),
    "export.dispatcher": "Dispatcher ForceDispatcher",
    "export.names": "create_input_names",
    "export.oxs_debug": "OxsDebugDispatcher",
    "export.oxs_dispatcher": "OxsDispatcher",
    "hook.installer": "install installed uninstall",
    "hook.report": "HookStatus status",
    "kernels.loading": "custom_ops_library",
    "optimize.pipeline": "get_pattern_list",
    "options": "ExportOptions OptimizationOptions OrtBackendOptions",
    "signature": "GraphSignature",
    "tools.backend_aids": (
        "compose_backends optimize_for_inference_backend pprint_storage print_graph_backend"
    ),
    "tools.comparison": "Comparison compare_exporters",
    "tools.dot": "plot_dot",
    "tools.dumps": "dump_onnx",
    "tools.explain": "Explanation explain",
    "tools.feeds": "build_matching_inputs inputs_from_onnx_model",
    "tools.onnx_text": "pretty_onnx",
    "tools.parsed_args": "get_parsed_args",
    "tools.repro": "dump_for_debug replay_dumped_data",
    "tools.results": "assert_all_close results_to_string",
    "tools.training": "train_loop train_loop_mixed_precision",
}
"""The public names by where they live."""

_EXPORTS = {name: module for module, names in _MODULES.items() for name in names.split()}

__all__ = sorted([*_EXPORTS, "__version__"])


def __getattr__(name: str) -> Any:
    if (module := _EXPORTS.get(name)) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)


if TYPE_CHECKING:
    from dort_rewriter.backends.custom import onnx_custom_backend
    from dort_rewriter.backends.debug import onnx_debug_backend
    from dort_rewriter.backends.layers import compile_layers
    from dort_rewriter.backends.onnxrt import (
        OrtBackend,
        is_onnxrt_backend_supported,
        make_aot_ort,
        torch_compile_backend,
    )
    from dort_rewriter.backends.optimize_onnx import optimize_onnx
    from dort_rewriter.backends.to_onnx import to_onnx
    from dort_rewriter.deployment.loading import SavedModel, load
    from dort_rewriter.deployment.saving import save
    from dort_rewriter.deployment.training_state import load_training_state, save_training_state
    from dort_rewriter.deployment.training_steps import export_training_step
    from dort_rewriter.deployment.warming import warm_up
    from dort_rewriter.errors import (
        CallMismatchError,
        CaptureError,
        DivergenceError,
        DortError,
        ExecutionError,
        ExportError,
        HookError,
        NotFiniteError,
        OptimizeError,
        OptionError,
        ResultReachedError,
        UnsupportedOpError,
    )
    from dort_rewriter.export.decompositions import (
        filter_decomposition_table,
        get_decomposition_table,
        get_decomposition_table_by_name,
    )
    from dort_rewriter.export.dispatcher import Dispatcher, ForceDispatcher
    from dort_rewriter.export.names import create_input_names
    from dort_rewriter.export.oxs_debug import OxsDebugDispatcher
    from dort_rewriter.export.oxs_dispatcher import OxsDispatcher
    from dort_rewriter.hook.installer import install, installed, uninstall
    from dort_rewriter.hook.report import HookStatus, status
    from dort_rewriter.kernels.loading import custom_ops_library
    from dort_rewriter.optimize.pipeline import get_pattern_list
    from dort_rewriter.options import ExportOptions, OptimizationOptions, OrtBackendOptions
    from dort_rewriter.signature import GraphSignature
    from dort_rewriter.tools.backend_aids import (
        compose_backends,
        optimize_for_inference_backend,
        pprint_storage,
        print_graph_backend,
    )
    from dort_rewriter.tools.comparison import Comparison, compare_exporters
    from dort_rewriter.tools.dot import plot_dot
    from dort_rewriter.tools.dumps import dump_onnx
    from dort_rewriter.tools.explain import Explanation, explain
    from dort_rewriter.tools.feeds import build_matching_inputs, inputs_from_onnx_model
    from dort_rewriter.tools.onnx_text import pretty_onnx
    from dort_rewriter.tools.parsed_args import get_parsed_args
    from dort_rewriter.tools.repro import dump_for_debug, replay_dumped_data
    from dort_rewriter.tools.results import assert_all_close, results_to_string
    from dort_rewriter.tools.training import train_loop, train_loop_mixed_precision

hook_later()
