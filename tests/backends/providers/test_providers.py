"""Which providers a session gets: preferred, inferred, default; and their options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx.parser
import onnx_ir as ir
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from dort_rewriter import OrtBackend, OrtBackendOptions
from dort_rewriter.backends import onnxrt_graphs
from dort_rewriter.compiler import building, provider_choice
from dort_rewriter.compiler.provider_choice import select_providers
from dort_rewriter.plan import nodes
from dort_rewriter.plan.nodes import Chooser
from dort_rewriter.runtime import providers
from dort_rewriter.runtime.providers import CPU, CUDA, OPENVINO, Provider
from tests.backends.ways import HAS_ORT_BACKEND, compile_strictly

GRAPH = torch.fx.symbolic_trace(lambda x: x + 1)
AS_TORCH = {"use_tf32": "0", "cudnn_conv_algo_search": "HEURISTIC"}
"""What `tests/compiler/test_provider_choice.py` is about."""


def _select(monkeypatch: pytest.MonkeyPatch, **options: Any) -> list[Any]:
    """Select as on a machine with all providers, whose second GPU holds the tensors."""
    present = lambda specs, strict: specs  # noqa: E731
    monkeypatch.setattr(provider_choice, "take_present", present)
    inferred = (Provider(CUDA, {"device_id": "1"}), Provider(CPU))
    monkeypatch.setattr(provider_choice, "infer", lambda devices: inferred)
    backend: Any = OrtBackend(OrtBackendOptions(**options))
    found = list(backend._select_eps(GRAPH, torch.ones(1)))
    if HAS_ORT_BACKEND:
        from torch.onnx._internal.onnxruntime import OrtBackend as TorchBackend

        backend = TorchBackend(OrtBackendOptions(**options))
    assert (
        list(onnxrt_graphs.make_recipe(backend).select_providers(GRAPH, (torch.ones(1),))) == found
    )
    return found


def test_preferred_then_inferred_then_default(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = _select(
        monkeypatch,
        preferred_execution_providers=["A", ("B", {"k": 1})],
        default_execution_providers=["C", CPU],
    )
    on_cuda = (CUDA, {**AS_TORCH, "device_id": "1"})
    assert chosen == [("A", {}), ("B", {"k": "1"}), on_cuda, (CPU, {}), ("C", {})]


def test_a_preferred_provider_runs_where_the_tensors_are(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = _select(monkeypatch, preferred_execution_providers=[CUDA])
    assert chosen == [(CUDA, {**AS_TORCH, "device_id": "1"}), (CPU, {})]
    asked = {"device_id": 0, "cudnn_conv_algo_search": "DEFAULT"}
    chosen = _select(monkeypatch, preferred_execution_providers=[(CUDA, asked)])
    assert chosen[0] == (CUDA, {**AS_TORCH, **asked, "device_id": "0"})


def test_results_on_a_device_decide_where_arguments_are_on_the_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(providers, "built_in", lambda: (CUDA, CPU))
    graph = torch.fx.symbolic_trace(lambda x: x + 1)
    (made,) = next(n for n in graph.graph.nodes if n.op == "output").all_input_nodes
    with FakeTensorMode():
        made.meta["val"] = torch.empty(1, device="cuda:1")
    chosen = select_providers(OrtBackendOptions(), graph, [torch.ones(1)])
    assert chosen == [(CUDA, {**AS_TORCH, "device_id": "1"}), (CPU, {})]


@pytest.mark.parametrize("provider", [CPU, CUDA])
@pytest.mark.parametrize("function", [torch.relu, torch.sort, torch.linalg.svdvals])
def test_our_kernels_are_not_compiled_for_a_graph_on_cuda(
    function: Callable[..., Any], provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are for the CPU, and take half a minute where no compiled ones were installed."""

    def fail(options: Any) -> bool:
        raise AssertionError("it was asked for our kernels")

    monkeypatch.setattr(nodes, "uses_own_kernels", fail)
    with FakeTensorMode():
        graph = make_fx(function)(torch.empty(3, 3, device="cuda"))
    made = Chooser(onnxrt_graphs.make_recipe(OrtBackend()), provider)
    for node in graph.graph.nodes:
        if node.op == "call_function":
            made.choose(node)
            assert not made.may_call(node)


def test_our_kernels_are_not_compiled_for_a_plug_in(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(options: Any) -> bool:
        raise AssertionError("it was asked for our kernels")

    monkeypatch.setattr(nodes, "uses_own_kernels", fail)
    made = Chooser(onnxrt_graphs.make_recipe(OrtBackend()), OPENVINO)
    for function in (torch.relu, torch.sort, lambda x: torch.nn.functional.max_pool2d(x, 2)):
        graph = make_fx(function, tracing_mode="fake")(torch.ones(1, 4, 4))
        for node in graph.graph.nodes:
            if node.op == "call_function":
                made.choose(node)


def test_casts_are_for_nodes_without_a_kernel_on_cuda_and_on_the_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def has_kernel(op_type: str, *args: Any, provider: str, **kwargs: Any) -> bool:
        types = args[2]
        asked.append((op_type, provider))
        return types[0] == ir.DataType.FLOAT or (op_type == "Erf" and provider == CPU)

    monkeypatch.setattr(building, "has_kernel", has_kernel)
    model = ir.from_proto(
        onnx.parser.parse_model(
            """<ir_version: 8, opset_import: ["" : 18]> g (bfloat16[N] x) => (bool[N] y) {
                z = Erf(x)
                y = Equal(z, x)
            }"""
        )
    )
    for node in model.graph:
        for value in node.outputs:
            value.type = ir.TensorType(ir.DataType.BFLOAT16)
    building.add_casts(model, provider=CUDA)
    assert [n.op_type for n in model.graph] == ["Erf", "Cast", "Cast", "Equal"]
    assert asked[:3] == [("Erf", CUDA), ("Erf", CPU), ("Equal", CUDA)]


def test_nothing_is_inferred_when_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _select(monkeypatch, infer_execution_providers=False) == [(CPU, {})]


def test_options_reach_the_session() -> None:
    compiled, backend = compile_strictly(
        torch.relu, preferred_execution_providers=[(CPU, {"use_arena": "0"})]
    )
    x = torch.randn(3)
    torch.testing.assert_close(compiled(x), x.relu())
    ((info,),) = backend._all_ort_execution_info.execution_info_per_graph_module.values()
    assert info.session.get_providers() == [CPU]


def test_a_selection_of_the_users_own_is_asked() -> None:
    class Chooser(OrtBackend):
        def _select_eps(self, graph_module: Any, *args: Any) -> Any:
            return [(CPU, {"use_arena": "0"})]

    backend = Chooser()
    found = onnxrt_graphs.make_recipe(backend).select_providers(GRAPH, (torch.ones(1),))
    assert found == [(CPU, {"use_arena": "0"})]
