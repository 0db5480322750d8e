"""torch's profilers see the runs of sessions, by name."""

from __future__ import annotations

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from dort_rewriter import OrtBackend


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.linear(x)).exp()


def runs(seen: profile) -> list[str]:
    events = seen.events() or []
    return [e.name for e in events if e.name.startswith("ONNX Runtime")]


@pytest.mark.parametrize("preallocate", [False, True])
def test_forward_and_backward_are_events_while_a_profiler_is_there(preallocate: bool) -> None:
    model = Model()
    backend = OrtBackend({"preallocate_output": preallocate})
    compiled = torch.compile(model, backend=backend)
    x = torch.randn(2, 4)
    compiled(x).sum().backward()
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        compiled(x).sum().backward()
        compiled(x)
    found = runs(seen)
    assert len(found) == 3
    assert all("nodes from test_profiler.py:" in name for name in found)
    assert len({*found}) == 2
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        torch.ones(3)
    assert runs(seen) == []


def test_results_and_errors_are_the_same_under_a_profiler() -> None:
    compiled = torch.compile(Model(), backend=OrtBackend())
    x = torch.randn(2, 4)
    with torch.no_grad(), profile(activities=[ProfilerActivity.CPU]) as seen:
        first = compiled(x)
    torch.testing.assert_close(first, compiled(x).detach(), rtol=0, atol=0)
    assert len(runs(seen)) == 1


def test_the_older_profiler_sees_them_too() -> None:
    compiled = torch.compile(torch.relu, backend=OrtBackend())
    compiled(torch.randn(3))
    with torch.autograd.profiler.profile() as seen:
        compiled(torch.randn(3))
    assert len([e for e in seen.function_events or [] if e.name.startswith("ONNX Runtime")]) == 1
