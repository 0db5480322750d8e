"""The public names: a change of this list is a decision, and a line of the changelog."""

from __future__ import annotations

import ast

import pytest

import dort_rewriter
from tests.gates.sources import PACKAGE, parse

PUBLIC = [
    "CallMismatchError",
    "CaptureError",
    "Dispatcher",
    "DivergenceError",
    "DortError",
    "ExecutionError",
    "ExportError",
    "ExportOptions",
    "ForceDispatcher",
    "GraphSignature",
    "HookError",
    "HookStatus",
    "OptimizationOptions",
    "NotFiniteError",
    "OptimizeError",
    "OptionError",
    "OrtBackend",
    "OrtBackendOptions",
    "OxsDebugDispatcher",
    "OxsDispatcher",
    "ResultReachedError",
    "UnsupportedOpError",
    "__version__",
    "assert_all_close",
    "build_matching_inputs",
    "compare_exporters",
    "Comparison",
    "compile_layers",
    "compose_backends",
    "create_input_names",
    "explain",
    "export_training_step",
    "Explanation",
    "optimize_for_inference_backend",
    "print_graph_backend",
    "custom_ops_library",
    "dump_for_debug",
    "dump_onnx",
    "filter_decomposition_table",
    "get_decomposition_table",
    "get_parsed_args",
    "get_decomposition_table_by_name",
    "inputs_from_onnx_model",
    "install",
    "installed",
    "is_onnxrt_backend_supported",
    "load",
    "load_training_state",
    "make_aot_ort",
    "onnx_custom_backend",
    "onnx_debug_backend",
    "pprint_storage",
    "plot_dot",
    "pretty_onnx",
    "replay_dumped_data",
    "results_to_string",
    "save",
    "save_training_state",
    "SavedModel",
    "status",
    "to_onnx",
    "optimize_onnx",
    "get_pattern_list",
    "torch_compile_backend",
    "train_loop",
    "train_loop_mixed_precision",
    "uninstall",
    "warm_up",
]


def type_checking_imports() -> dict[str, str]:
    """What type checkers see: the module of each name under ``if TYPE_CHECKING``."""
    (block,) = (
        node
        for node in parse(PACKAGE / "__init__.py").body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    return {
        alias.asname or alias.name: str(node.module)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_the_public_names() -> None:
    assert sorted(dort_rewriter.__all__) == sorted(PUBLIC)


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_resolves(name: str) -> None:
    value = getattr(dort_rewriter, name)
    assert getattr(value, "__name__", name) == name
    assert name in dir(dort_rewriter)


def test_type_checkers_see_the_same_names() -> None:
    lazy = {
        name: f"{dort_rewriter.__name__}.{module}"
        for name, module in dort_rewriter._EXPORTS.items()
    }
    assert type_checking_imports() == lazy


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'to_onyx'"):
        dort_rewriter.to_onyx  # noqa: B018
