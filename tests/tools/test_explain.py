"""explain: graphs, breaks, what runs where and why."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch

from dort_rewriter import OptionError, OrtBackend, explain
from dort_rewriter.tools.cli import main
from dort_rewriter.tools.command import load_pair
from tests.torch_facts import COMPILES_OWN_MODULES_IN_PLACE


def branching(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = x / (x.abs() + 1)
    if y.sum() < 0:  # a break
        y = -y
    return z * y


def partly(x: torch.Tensor) -> torch.Tensor:
    y = torch.linalg.inv(x.exp() + torch.eye(3))  # called in torch
    return torch.nn.functional.dropout(x * 2 + 1, 0.5) @ y  # drawn before the session


def test_a_break_has_its_reason_and_its_line() -> None:
    found = explain(branching, torch.randn(3), torch.ones(3))
    assert len(found.graphs) == 2
    (broken,) = found.breaks
    assert broken.reason.startswith("a branch on the value of a tensor")
    assert "if y.sum() < 0" in broken.where[-1]
    assert found.in_torch == ()
    text = str(found)
    assert text.startswith("2 graph(s), 1 break(s)\ngraph 0: ")
    assert "break 0: a branch on" in text


def test_forward_and_backward_graphs_are_told_apart() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU())
    (graph,) = explain(model, torch.randn(2, 4)).graphs
    assert [a.kind for a in graph.lowered] == ["forward", "backward"]
    assert all(p.grad is None for p in model.parameters())
    assert graph.lowered[0].models[0]["Relu"] == 1
    assert sum(graph.lowered[0].ops.values()) == graph.lowered[0].in_onnxruntime
    with torch.no_grad():
        (graph,) = explain(model, torch.randn(2, 4)).graphs
    assert [a.kind for a in graph.lowered] == ["inference"]


def test_what_runs_in_torch_has_its_reason_and_its_line() -> None:
    found = explain(partly, torch.randn(3, 3))
    reasons = {left.op: left for left in found.in_torch}
    draw = next(left for op, left in reasons.items() if "bernoulli" in op)
    assert draw.reason.startswith("random")
    (graph,) = found.graphs[0].lowered
    assert 0 < graph.in_onnxruntime < sum(graph.ops.values())
    assert sum(graph.counts().values()) == sum(graph.ops.values())


def test_what_sessions_call_in_torch_has_its_reason_and_its_line() -> None:
    found = explain(partly, torch.randn(3, 3))
    (graph,) = found.graphs[0].lowered
    inverse = next(found for found in graph.torch_kernels if "linalg_inv" in found.op)
    assert (inverse.op, inverse.reason, inverse.count) == (
        "aten::linalg_inv_ex",
        "no converter",
        1,
    )
    assert "torch.linalg.inv(x.exp()" in inverse.where[0]
    assert "called in torch: 1 x aten::linalg_inv_ex: no converter" in str(found)
    counts = graph.counts()
    called = counts["in torch, called by sessions"]
    assert called == sum(found.count for found in graph.torch_kernels) > 0
    assert sum(counts.values()) == sum(graph.ops.values())
    assert f"{graph.in_onnxruntime} in ONNX Runtime, {called} in torch, called" in str(found)


def test_small_parts_say_that_they_are_small() -> None:
    found = explain(torch.relu, torch.randn(3), backend_options={"min_block_size": 5})
    assert found.in_torch == ()  # a whole graph is worth a session whatever its size
    found = explain(partly, torch.randn(3, 3), backend_options={"min_block_size": 50})
    assert any("too few operators" in left.reason for left in found.in_torch)


def test_a_session_that_fails_is_told(caplog: pytest.LogCaptureFixture) -> None:
    def spoil(model: Any) -> None:
        model.graph.node[0].input[0] = "nowhere"

    options = {"pre_ort_model_transforms": (spoil,)}
    found = explain(torch.relu, torch.randn(3), backend_options=options)
    assert found.in_torch[0].reason.startswith("its session failed")


def test_dynamic_shapes_a_compiled_module_and_keyword_arguments() -> None:
    class Scale(torch.nn.Module):
        def forward(self, x: torch.Tensor, *, by: float = 1.0) -> torch.Tensor:
            return x * by + x.shape[0]

    compiled = torch.compile(Scale(), backend="eager")
    found = explain(compiled, torch.randn(4), by=2.0, compile_options={"dynamic": True})
    assert len(found.graphs) == 1
    assert found.in_torch == ()


MODEL = """
import torch

def partly():
    return (lambda x: torch.linalg.inv(x.exp() + torch.eye(3)) * 2 + 1), torch.randn(3, 3)

whole = (torch.nn.Linear(3, 2), (torch.randn(1, 3),))
number = 3
"""


@pytest.fixture
def model_file(tmp_path: Path) -> str:
    path = tmp_path / "the_model.py"
    path.write_text(MODEL)
    return str(path)


def test_the_command(model_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", f"{model_file}:whole", "--strict"]) == 0
    assert capsys.readouterr().out.startswith("1 graph(s), 0 break(s)")
    assert main(["explain", f"{model_file}:partly", "--strict", "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert any("linalg_inv" in t["op"] for t in data["graphs"][0]["lowered"][0]["torch_kernels"])


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("model.py", "FILE.py:NAME"),
        ("nowhere.py:model", "No file"),
        ("no.such.module:model", "No module"),
        ("{file}:missing", "has no 'missing'"),
        ("{file}:number", "gives a int"),
    ],
)
def test_a_model_that_is_not_there(model_file: str, source: str, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        load_pair(source.format(file=model_file))


def test_a_model_that_dynamo_skips_is_told_apart() -> None:
    in_eager_mode = torch.compiler.disable(torch.nn.Linear(3, 4).forward)
    found = explain(lambda x: in_eager_mode(x), torch.randn(2, 3))
    assert found.skipped
    assert "Dynamo captured nothing" in str(found)
    assert not explain(torch.nn.Linear(3, 4), torch.randn(2, 3)).skipped


class Own(torch.nn.Module):
    """A class of a user, with a module of torch's."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).relu()


def sequence() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU())


@torch.no_grad()  # Dynamo warns of what passes from one graph to another, and needs gradients
@pytest.mark.parametrize(
    ("make", "in_place", "otherwise"),
    [
        (sequence, int(COMPILES_OWN_MODULES_IN_PLACE), 1),
        (lambda: torch.nn.LSTM(4, 5), 0, 0),
        (Own, 1, 1),
        (lambda: torch.nn.Sequential(Own(), Own()), 1, 1),  # one graph for both
    ],
    ids=["sequence", "lstm", "own", "sequence of own"],
)
def test_what_was_compiled_is_explained_as_its_calls_are_compiled(
    make: Callable[[], torch.nn.Module], in_place: int, otherwise: int
) -> None:
    x = torch.randn(2, 3, 4)
    backend, model = OrtBackend(), make()
    model.compile(backend=backend)
    model(x)
    assert (backend.execution_count > 0) == (in_place > 0)
    found = explain(model, x)
    assert len(found.graphs) == in_place
    assert found.skipped == (in_place == 0)
    assert ("compiled in place" in str(found)) == found.skipped
    assert len(explain(make(), x).graphs) == otherwise
    assert len(explain(torch.compile(make(), backend="onnxrt"), x).graphs) == otherwise


def test_backward_and_times_of_what_was_compiled() -> None:
    """Eager mode, to compare with, is not what was compiled."""
    model, backend = Own(), OrtBackend()
    model.compile(backend=backend)
    function = torch.compile(lambda x: x * 2 + 1, backend=backend)
    for compiled in (model, function):
        found = explain(compiled, torch.randn(2, 4, requires_grad=True), times=True)
        assert [a.kind for a in found.graphs[0].lowered] == ["forward", "backward"]
    assert backend.execution_count == 0


def test_a_compiled_method_is_explained() -> None:
    found = explain(torch.compile(Own().forward, backend="onnxrt"), torch.randn(2, 4))
    assert [a.kind for a in found.graphs[0].lowered] == ["forward", "backward"]


def test_the_command_counts_a_skipped_model_as_run_in_torch(tmp_path: Path) -> None:
    path = tmp_path / "recurrent.py"
    path.write_text("import torch\nmodel = torch.nn.LSTM(4, 5), (torch.ones(2, 3, 4),)\n")
    assert main(["explain", f"{path}:model"]) == 0
    assert main(["explain", f"{path}:model", "--strict"]) == 1


def test_frozen_weights_are_explained_as_they_run() -> None:
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU()
    ).eval()
    with torch.no_grad():
        found = explain(model, torch.randn(1, 3, 8, 8), backend_options={"freeze": True})
    ((nodes,),) = (g.models for g in found.graphs[0].lowered)
    assert nodes == {"Conv": 1, "BatchNormalization": 1, "Relu": 1}  # by constants: ONNX Runtime's


def _renamed(model: onnx.ModelProto) -> None:
    for node in model.graph.node:
        if node.op_type == "Relu":
            node.op_type = "Abs"


def test_models_are_those_that_run() -> None:
    options = {"pre_ort_model_transforms": [_renamed]}
    found = explain(torch.relu, torch.randn(3), backend_options=options)
    assert found.graphs[0].lowered[0].models == ({"Abs": 1},)


@pytest.mark.parametrize("way", ["compiled", "compile_options", "backend_options"])
def test_options_of_what_is_explained(way: str) -> None:
    model, options = torch.nn.Linear(3, 3), {"placement": {"*": "torch"}}
    x, how = torch.randn(2, 3), {}
    if way == "compiled":
        given = torch.compile(model, backend="onnxrt", options=options)
    else:
        given, how = model, {way: {"options": options} if way == "compile_options" else options}
    with torch.no_grad():
        (graph,) = explain(given, x, **how).graphs
    assert graph.lowered[0].in_onnxruntime == 0


def test_modes_and_backends_among_the_arguments_of_torch_compile() -> None:
    x = torch.randn(3)
    (graph,) = explain(torch.relu, x, compile_options={"mode": "max-autotune"}).graphs
    assert len(graph.lowered[0].timed) > 1
    with pytest.raises(OptionError, match="leave 'backend' out"):
        explain(torch.relu, x, compile_options={"backend": "onnxrt"})
    with pytest.raises(OptionError, match="not both"):
        explain(torch.relu, x, compile_options={"options": {}}, backend_options={})


@pytest.mark.parametrize("of_complex", [False, True])
def test_gradients_of_what_a_function_holds(of_complex: bool) -> None:
    model = torch.nn.Linear(3, 4)

    def function(x: torch.Tensor) -> torch.Tensor:
        y = model(x)
        return torch.view_as_complex(y.view(2, 2, 2)) if of_complex else y

    (graph,) = explain(function, torch.randn(2, 3)).graphs
    assert [a.kind for a in graph.lowered] == ["forward", "backward"]
    assert model.weight.grad is None


class Plain:
    def __init__(self, y: torch.Tensor) -> None:
        self.y = y


@dataclass
class Output:
    y: torch.Tensor


@pytest.mark.parametrize("holder", [Plain, Output])
def test_gradients_of_what_objects_hold(holder: type) -> None:
    model = torch.nn.Linear(3, 4)
    (graph,) = explain(lambda x: holder(model(x)), torch.randn(2, 3)).graphs
    assert [a.kind for a in graph.lowered] == ["forward", "backward"]
