"""explain(times=True): where the time goes. What is asserted are names and sums, no speeds."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from dort_rewriter import explain
from dort_rewriter.runtime.session import session_options
from dort_rewriter.tools import explain_times, machine
from dort_rewriter.tools.cli import main
from dort_rewriter.tools.explain_times import KernelTime, Times


@pytest.fixture(autouse=True)
def few_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explain_times, "SECONDS", 0.0)


def times_of(model: Any, *args: Any, **options: Any) -> Times:
    found = explain(model, *args, times=True, **options).times
    assert found is not None
    assert found.calls == explain_times.CALLS
    assert found.eager > 0
    assert min(found.parts.values()) >= 0
    assert min(found.phases.values()) >= 0
    assert sum(found.parts.values()) == pytest.approx(found.call)
    assert sum(found.phases.values()) == pytest.approx(found.first_call)
    kernels = found.parts["kernels"] + found.parts["called"]
    assert sum(k.seconds for k in found.kernels) == pytest.approx(kernels)
    assert found.copies <= kernels <= found.call
    for median, (low, high) in (
        (found.call, found.call_spread),
        (found.eager, found.eager_spread),
    ):
        assert low <= median <= high
    assert list(found.kernels) == sorted(found.kernels, key=lambda k: -k.seconds)
    assert len({(k.op, k.where) for k in found.kernels}) == len(found.kernels)
    return found


class Small(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(12, 20)
        self.norm = torch.nn.BatchNorm1d(20)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.linear(x))
        return torch.softmax(y, -1)


def test_forward_and_backward_have_kernels_with_their_lines() -> None:
    model = Small()
    before = {name: t.clone() for name, t in model.state_dict().items()}
    found = times_of(model, torch.randn(5, 12))
    by_op = {k.op: k for k in found.kernels}
    assert by_op["Softmax"].where.endswith("return torch.softmax(y, -1)")
    assert by_op["Softmax"].runs == 1
    assert "self.norm(self.linear(x))" in next(
        k.where for k in found.kernels if k.op in ("Gemm", "FusedGemm", "MatMul")
    )
    assert found.parts["kernels"] > 0
    assert found.parts["boundaries"] > 0
    assert all(found.phases[p] > 0 for p in ("torch", "cut", "export", "session", "run"))
    assert {
        n: bool((t == before[n]).all()) for n, t in model.state_dict().items()
    } == dict.fromkeys(before, True)
    assert all(p.grad is None for p in model.parameters())


def test_what_is_copied_and_what_stays_in_torch() -> None:
    def partly(x: torch.Tensor) -> torch.Tensor:
        y = torch.linalg.inv(x.exp() + torch.eye(3))
        return y * 2 + torch.cat([y, y])[:3]

    found = times_of(partly, torch.randn(3, 6)[:, ::2])
    assert found.copied_arguments >= 1
    assert found.parts["torch"] > 0
    assert "copied before a session can read them" in str(found)
    dense = times_of(torch.relu, torch.randn(3, 4))
    assert dense.copied_arguments == 0
    assert [(k.op, k.runs) for k in dense.kernels] == [("Relu", 1)]
    assert times_of(torch.t, torch.randn(3, 4)).kernels == ()  # a view needs no session


def test_saved_tensors_are_read_as_they_are() -> None:
    """As by the backend itself, which knows their strides."""

    def attend(x: torch.Tensor) -> torch.Tensor:
        heads = x.transpose(1, 2)
        return torch.nn.functional.scaled_dot_product_attention(heads, heads, heads).cos().sum()

    assert times_of(attend, torch.randn(2, 5, 3, 4, requires_grad=True)).copied_arguments == 0


def test_what_is_timed_was_tuned_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow model is called too few times for that."""
    monkeypatch.setattr(explain_times, "CALLS", 2)
    (graph,) = explain(
        torch.relu, torch.randn(3), times=True, backend_options={"autotune": True}
    ).graphs
    assert graph.lowered[0].timed


def test_a_graph_that_is_skipped_has_no_kernels() -> None:
    in_eager_mode = torch.compiler.disable(torch.nn.Linear(3, 4).forward)
    found = times_of(lambda x: in_eager_mode(x), torch.randn(2, 3))
    assert found.kernels == ()
    assert found.parts["around"] == found.call


def test_settings_of_a_user_are_used_and_left_as_they_were() -> None:
    settings = session_options(optimization_level="disable")
    options = {"ort_session_options": settings}
    found = times_of(torch.relu, torch.randn(3), backend_options=options)
    assert found.kernels[0].op == "Relu"
    assert not settings.enable_profiling


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "the_model.py"
    path.write_text("import torch\nwhole = (torch.nn.Linear(3, 2), (torch.randn(1, 3),))\n")
    assert main(["explain", f"{path}:whole", "--times", "--json"]) == 0
    times = json.loads(capsys.readouterr().out)["times"]
    assert times["kernels"][0]["seconds"] > 0
    assert set(times["parts"]) == set(explain_times.PARTS)
    assert main(["explain", f"{path}:whole", "--times"]) == 0
    text = capsys.readouterr().out
    for title in (*explain_times.PARTS.values(), *explain_times.PHASES.values()):
        assert title in text
    assert main(["explain", f"{path}:whole", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["times"] is None


def test_many_kernels_are_summed_up_in_the_text() -> None:
    found = times_of(torch.relu, torch.randn(3))
    kernels = [KernelTime(op=f"Op{i}", where="", seconds=1e-3, runs=1) for i in range(30)]
    text = str(dataclasses.replace(found, kernels=tuple(kernels)))
    assert text.count(" x Op") == explain_times.SHOWN
    assert "33% in all others" in text


def test_times_add_up_under_a_slow_profiler() -> None:
    """What the profiler says is scaled to calls without it: copies are never more than kernels."""
    calls = [(1.0, 0.5, 0.4), (1.2, 0.6, 0.5), (9.0, 0.5, 0.4), (1.1, 0.5, 0.4)]
    slow = [KernelTime(op=op, where="", seconds=s, runs=1) for op, s in OPS]
    profile = explain_times._Profile(boundaries=3.0, copied=0, kernels=tuple(slow))
    found = explain_times._times([0.5] * 4, calls, profile, 2.0, {"run": 2.0}, "")
    assert found.call == pytest.approx(1.15)
    assert sum(found.parts.values()) == pytest.approx(found.call)
    assert found.parts["kernels"] + found.parts["called"] == pytest.approx(
        sum(k.seconds for k in found.kernels)
    )
    assert found.copies < found.parts["kernels"] < found.profiled
    assert found.parts["called"] == pytest.approx(found.parts["kernels"])
    text = str(found)
    assert "a call: 1150.000 (1075.000 to 3150.000) ms" in text
    assert "NOTE" not in text
    busy = str(dataclasses.replace(found, busy="the machine is busy: a load of 9.0"))
    assert busy.startswith("NOTE: the machine is busy: a load of 9.0: measure again")


OPS = [("Cast", 1.0), ("Gemm", 3.0), ("TorchCall", 4.0)]


def test_a_busy_machine_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_SPIN", 0.002)
    monkeypatch.setattr(machine, "_WAITED", 0.0)
    assert "times as long" in machine.busy()
    monkeypatch.setattr(machine, "_WAITED", 1e9)
    monkeypatch.setattr(machine.os, "getloadavg", lambda: (99.0, 0, 0), raising=False)
    assert "a load of 99.0" in machine.busy()
    monkeypatch.setattr(machine.os, "getloadavg", lambda: (0.5, 0, 0), raising=False)
    assert machine.busy() == ""
