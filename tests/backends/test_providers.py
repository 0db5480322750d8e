"""Which providers a session gets: preferred, inferred, default; and their options."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

from dort_rewriter import OrtBackend, OrtBackendOptions
from dort_rewriter.backends import onnxrt_graphs, provider_choice
from dort_rewriter.runtime.providers import CPU, CUDA, Provider
from tests.backends.ways import HAS_ORT_BACKEND, compile_strictly

GRAPH = torch.fx.symbolic_trace(lambda x: x + 1)


def _select(monkeypatch: pytest.MonkeyPatch, **options: Any) -> list[Any]:
    """Select as on a machine whose second GPU holds the tensors."""
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
    assert chosen == [("A", {}), ("B", {"k": 1}), (CUDA, {"device_id": "1"}), (CPU, {}), ("C", {})]


def test_a_preferred_provider_runs_where_the_tensors_are(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = _select(monkeypatch, preferred_execution_providers=[CUDA])
    assert chosen == [(CUDA, {"device_id": "1"}), (CPU, {})]
    asked = [(CUDA, {"device_id": 0, "cudnn_conv_algo_search": "HEURISTIC"})]
    assert _select(monkeypatch, preferred_execution_providers=asked)[0] == asked[0]


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


def test_a_provider_that_is_not_there_is_named_and_left_out() -> None:
    compiled, _ = compile_strictly(
        torch.relu, preferred_execution_providers=["NowhereExecutionProvider"]
    )
    x = torch.randn(3)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        torch.testing.assert_close(compiled(x), x.relu())
        compiled(x)
    texts = [str(w.message) for w in seen if "Nowhere" in str(w.message)]
    assert len(texts) == 1
    assert CPU in texts[0]


def test_a_selection_of_the_users_own_is_asked() -> None:
    class Chooser(OrtBackend):
        def _select_eps(self, graph_module: Any, *args: Any) -> Any:
            return [(CPU, {"use_arena": "0"})]

    backend = Chooser()
    found = onnxrt_graphs.make_recipe(backend).select_providers(GRAPH, (torch.ones(1),))
    assert found == [(CPU, {"use_arena": "0"})]
