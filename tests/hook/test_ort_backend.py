"""torch's own class under the hook, with the real backend behind it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from dort_rewriter import install, uninstall
from tests.hook.conftest import HAS_ORT_BACKEND

pytestmark = [
    pytest.mark.skipif(not HAS_ORT_BACKEND, reason="this torch has no OrtBackend"),
    pytest.mark.usefixtures("unhooked"),
]


def function(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x) * 2 + x


@pytest.fixture
def x() -> torch.Tensor:
    return torch.linspace(-1, 1, 6).reshape(2, 3)


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Any:
    install()
    monkeypatch.setenv("ONNXRT_CHANGE_REWRITER", "1")
    from torch.onnx._internal.onnxruntime import OrtBackend, OrtBackendOptions

    return OrtBackend(OrtBackendOptions(use_aot_autograd=False))


def refuse(*args: Any, **kwargs: Any) -> Any:
    raise AssertionError("torch's own exporter was asked")


@pytest.fixture
def exporter_of_torch(backend: Any) -> Any:
    """Make torch's code for a new graph recognizable: it starts with a look into this table."""
    backend._all_ort_execution_info.search_reusable_session_execution_info = refuse
    return backend


def test_a_graph_is_compiled_and_runs(backend: Any, x: torch.Tensor) -> None:
    compiled = backend(make_fx(function)(x), (x,))
    (result,) = compiled(x) if isinstance(compiled(x), tuple) else (compiled(x),)
    torch.testing.assert_close(result, function(x))
    assert backend.execution_count > 0


def test_sessions_outlive_the_variable(
    exporter_of_torch: Any, x: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, graph, other = exporter_of_torch, make_fx(function)(x), make_fx(function)(x)
    torch.testing.assert_close(backend._ort_acclerated_call(graph, x), function(x))
    monkeypatch.delenv("ONNXRT_CHANGE_REWRITER")
    torch.testing.assert_close(backend._ort_acclerated_call(graph, x), function(x))
    with pytest.raises(AssertionError, match="torch's own exporter"):
        backend._ort_acclerated_call(other, x)
    monkeypatch.setenv("ONNXRT_CHANGE_REWRITER", "1")
    torch.testing.assert_close(backend._ort_acclerated_call(other, x), function(x))


def test_sessions_outlive_the_hook(exporter_of_torch: Any, x: torch.Tensor) -> None:
    backend, graph, other = exporter_of_torch, make_fx(function)(x), make_fx(function)(x)
    bound = backend._ort_acclerated_call
    torch.testing.assert_close(bound(graph, x), function(x))
    uninstall()
    torch.testing.assert_close(bound(graph, x), function(x))
    for call in (bound, backend._ort_acclerated_call):
        with pytest.raises(AssertionError, match="torch's own exporter"):
            call(other, x)
