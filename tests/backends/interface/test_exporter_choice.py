"""Who exports: this package, torchlib alone, with or without rewriting."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dort_rewriter import OrtBackend, OrtBackendOptions, make_aot_ort
from dort_rewriter.backends import onnxrt_graphs


def _run(backend: OrtBackend) -> torch.Tensor:
    x = torch.linspace(-1, 1, 6).reshape(2, 3).requires_grad_()
    compiled = torch.compile(lambda x: torch.relu(x).sum(1) * 2 + x[:, 0], backend=backend)
    y = compiled(x)
    torch.testing.assert_close(y, torch.relu(x).sum(1) * 2 + x[:, 0])
    (gradient,) = torch.autograd.grad(y.sum(), x)
    return gradient


def _converters(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note where the converters of the graphs compiled from now on come from."""
    seen: list[str] = []
    record = onnxrt_graphs._record

    def note(backend: Any, built: Any) -> None:
        seen.extend(n.op_type for n in built.exported.model.graph)
        record(backend, built)

    monkeypatch.setattr(onnxrt_graphs, "_record", note)
    return seen


@pytest.mark.parametrize("value", ["0", "1", ""])
def test_zero_exports_with_torchlib_alone(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONNXRT_CHANGE_REWRITER", value)
    nodes = _converters(monkeypatch)
    dispatcher = onnxrt_graphs.make_dispatcher()
    assert dispatcher.prefers("aten::threshold_backward") is (value != "0")
    assert dispatcher.converts("aten::relu")
    backend = OrtBackend(OrtBackendOptions(fallback=value == "0"))
    gradient = _run(backend)
    monkeypatch.setenv("ONNXRT_CHANGE_REWRITER", "1")
    torch._dynamo.reset()
    torch.testing.assert_close(gradient, _run(OrtBackend()))
    assert backend.execution_count >= 1
    assert nodes


def test_without_rewriting_a_model_is_run_as_exported(monkeypatch: pytest.MonkeyPatch) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.t().t().reshape(3, 2).reshape(2, 3) + x * 1

    sizes = []
    for rewrite in (True, False):
        torch._dynamo.reset()
        nodes = _converters(monkeypatch)
        backend, _ = make_aot_ort(rewrite=rewrite)
        x = torch.randn(2, 3)
        torch.testing.assert_close(torch.compile(function, backend=backend)(x), function(x))
        sizes.append(len(nodes))
        monkeypatch.undo()
    assert sizes[0] < sizes[1]
