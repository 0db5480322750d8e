"""``verify``: a model that does not give what torch gives is found, named and written down."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch

from dort_rewriter import DivergenceError, OptionError, OrtBackendOptions
from tests.backends.ways import compile_strictly
from tests.gates.sources import ROOT


@pytest.fixture(autouse=True)
def reports(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("DORT_REPORT_DIR", str(tmp_path))
    return tmp_path


def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x * y) + 1


def break_multiplication(model: onnx.ModelProto) -> None:
    for node in model.graph.node:
        if node.op_type == "Mul":
            node.op_type = "Add"


def broken(**options: Any) -> Any:
    return compile_strictly(
        function,
        pre_ort_model_transforms=[break_multiplication],
        optimization={"patterns": None},  # which nodes there are is not the rules' to say
        **options,
    )[0]


def test_a_right_model_passes() -> None:
    compiled, _ = compile_strictly(function, verify=True)
    x, y = torch.randn(3, 4), torch.randn(4)
    torch.testing.assert_close(compiled(x, y), function(x, y))


def test_a_wrong_model_raises_and_names_the_node() -> None:
    with pytest.raises(DivergenceError, match="is not what torch gives for") as caught:
        broken(verify=True)(torch.randn(3, 4), torch.randn(4))
    assert "mul" in caught.value.node
    assert "x * y" in caught.value.where


def test_the_folder_holds_all_that_shows_it(reports: Path) -> None:
    with pytest.raises(DivergenceError):
        broken(verify=True)(torch.randn(4, 3).t(), torch.randn(4))
    (folder,) = reports.iterdir()
    names = {path.name for path in folder.iterdir()}
    assert names == {"graph.txt", "model.onnx", "problem.json", "reproduce.py", "test_case_0"}
    problem = json.loads((folder / "problem.json").read_text())
    assert torch.__version__.startswith(problem["torch"])  # it may tell of which build
    assert "aten.mul" in (folder / "graph.txt").read_text()
    script = (folder / "reproduce.py").read_text()
    assert "options={'optimization': {'patterns': None}, 'fallback': False}" in script
    assert onnx.load(folder / "model.onnx").graph.node


@pytest.mark.alternating
def test_the_script_runs_the_graph_again(reports: Path) -> None:
    with pytest.raises(DivergenceError):
        broken(verify=True)(torch.randn(4, 3).t(), torch.randn(1, 4).expand(3, 4))
    (folder,) = reports.iterdir()
    command = [sys.executable, str(folder / "reproduce.py")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    # The model was broken by hand: made again, it is right.
    assert done.stdout == "Both ways give the same.\n", done.stderr


@pytest.mark.parametrize("calls", [1, 3])
def test_only_the_first_calls_are_compared(calls: int) -> None:
    class Nothing(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.relu() * 2

    compiled, backend = compile_strictly(Nothing(), verify=calls)
    with torch.no_grad():
        compiled(torch.randn(3))
    compared: list[int] = []
    (graph,) = backend._all_ort_execution_info.execution_info_per_graph_module
    forward = graph.forward

    def counting(*args: Any) -> Any:
        compared.append(1)
        return forward(*args)

    graph.forward = counting
    with torch.no_grad():
        for _ in range(5):
            compiled(torch.randn(3))
    assert len(compared) == calls - 1


def test_nothing_is_compared_unless_asked_for() -> None:
    x, y = torch.randn(3, 4), torch.randn(4)
    torch.testing.assert_close(broken()(x, y), torch.tanh(x + y) + 1)


def test_the_variable_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DORT_VERIFY", "1")
    with pytest.raises(DivergenceError):
        broken()(torch.randn(3, 4), torch.randn(4))


def test_arguments_that_are_written_to(reports: Path) -> None:
    def write(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.mul_(y)
        x[:, ::2].add_(1)
        return x.sum(0)

    compiled, _ = compile_strictly(write, verify=5)
    for _ in range(3):
        x, y = torch.randn(3, 4), torch.randn(4)
        ours, eagers = x.clone(), x.clone()
        torch.testing.assert_close(compiled(ours, y), write(eagers, y))
        torch.testing.assert_close(ours, eagers)
    assert list(reports.iterdir()) == []


def test_training_is_compared_too() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.GELU())
    compiled, _ = compile_strictly(model, verify=True)
    for _ in range(3):
        compiled(torch.randn(6, 4)).sum().backward()
    x = torch.randn(3, 4, requires_grad=True)
    result = compile_strictly(
        lambda x: (x * x).sum(),
        pre_ort_model_transforms=[break_multiplication],
        optimization={"patterns": None},
        verify=True,
    )[0]
    with pytest.raises(DivergenceError):
        result(x).backward()


def test_what_hangs_on_a_rounding_is_no_error(reports: Path) -> None:
    def cancel(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x.sum() - y.sum()) * 1e6

    x = torch.rand(1000) * 100
    compiled, _ = compile_strictly(cancel, verify=True)
    compiled(x, x.sort().values)
    assert list(reports.iterdir()) == []


@pytest.mark.parametrize("value", ["yes", -1, 1.5])
def test_a_value_that_is_no_number_of_calls_is_refused(value: Any) -> None:
    with pytest.raises(OptionError, match="a number of calls"):
        OrtBackendOptions(verify=value)
