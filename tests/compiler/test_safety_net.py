"""What nobody foresaw leaves a graph to torch: each phase is broken in turn."""

from __future__ import annotations

import json
import logging
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from dort_rewriter import (
    OptionError,
    OrtBackend,
    OrtBackendOptions,
    make_aot_ort,
    onnx_custom_backend,
    onnx_debug_backend,
)

PHASES = {
    "AOTAutograd": "dort_rewriter.backends.onnxrt_graphs.compile_with_aot",
    "the tracing table": "dort_rewriter.backends.onnxrt_graphs.get_tracing_table",
    "the joint graph": "dort_rewriter.capture.aot.drop_copies",
    "the random operators": "dort_rewriter.plan.graph_plan.hoist_random",
    "the places of nodes": "dort_rewriter.plan.graph_plan.Chooser",
    "the plan of the results": "dort_rewriter.plan.graph_plan.plan_outputs",
    "the memory of the inputs": "dort_rewriter.compiler.building.input_orders",
    "the export": "dort_rewriter.compiler.building.convert_graph",
    "a converter": "dort_rewriter.export.interpreter._promote",
    "the optimizer": "dort_rewriter.compiler.building.optimize",
    "the dump": "dort_rewriter.compiler.building.try_dump",
    "the session": "dort_rewriter.compiler.building.create_session",
    "the executor": "dort_rewriter.compiler.building.Executor",
    "what looks at built blocks": "dort_rewriter.compiler.block.describe",
}

PER_GRAPH = {"AOTAutograd", "the tracing table", "the joint graph"}
"""Phases of a whole graph; the others are of its forward and its backward graph each."""

DEFECTS = [RuntimeError, TypeError, AssertionError, KeyError, NotImplementedError]

BROKEN = [
    *((phase, DEFECTS[i % len(DEFECTS)]) for i, phase in enumerate(PHASES)),
    *(("the export", error) for error in DEFECTS),
]


@pytest.fixture
def net(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spread the net that the test suite works without."""
    monkeypatch.delenv("DORT_STRICT")


def break_phase(
    monkeypatch: pytest.MonkeyPatch, phase: str, error: type[BaseException] = RuntimeError
) -> None:
    def broken(*args: Any, **kwargs: Any) -> Any:
        raise error("broken on purpose")

    monkeypatch.setattr(PHASES[phase], broken)


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the package warned of."""
    ours = (r for r in caplog.records if r.name.startswith("dort_rewriter"))
    return [r.getMessage() for r in ours if r.levelno >= logging.WARNING]


def program(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return (x * y).relu() + 1, x.exp().sum()


def train(function: Callable[..., Any]) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(3, 4, generator=generator).requires_grad_() for _ in range(2))
    a, b = function(x, y)
    (a.sum() * 2 + b).backward()
    assert x.grad is not None
    assert y.grad is not None
    return a.detach(), b.detach(), x.grad, y.grad


@pytest.mark.parametrize(("phase", "error"), dict.fromkeys(BROKEN))
@pytest.mark.usefixtures("net")
def test_the_program_runs_and_is_told_once(
    phase: str,
    error: type[Exception],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    break_phase(monkeypatch, phase, error)
    compiled = torch.compile(program, backend="onnxrt")
    torch.testing.assert_close(train(compiled), train(program))
    told = warnings_of(caplog)
    assert len(told) == (1 if phase in PER_GRAPH else 2)
    assert all(f"{error.__name__}: " in text and "broken on purpose" in text for text in told)
    assert all("test_safety_net.py" in text for text in told)
    assert all("dort-rewriter report" in text for text in told)
    caplog.clear()
    torch.testing.assert_close(train(compiled), train(program))
    assert warnings_of(caplog) == []


@pytest.mark.usefixtures("net")
def test_dynamo_breaks_the_graph_where_a_number_is_needed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """torch 2.8 reads a mask of rank 0 as a number: that line runs in torch, not the rest."""

    def masked(x: torch.Tensor) -> torch.Tensor:
        y = x.exp() * 2
        y[y > 1] = 0
        return (y + 1).exp()

    for x in (torch.tensor(2.0), torch.tensor(-2.0)):
        compiled = torch.compile(masked, backend="onnxrt")
        torch.testing.assert_close(compiled(x), masked(x))
    assert warnings_of(caplog) == []


@pytest.mark.parametrize(
    "phase", ["AOTAutograd", "the random operators", "a converter", "the session"]
)
@pytest.mark.usefixtures("net")
def test_a_report_is_written_where_one_is_asked_for(
    phase: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ONNXRT_CHANGE_REWRITER", "1")  # the script sets it
    with monkeypatch.context() as broken:
        break_phase(broken, phase, KeyError)
        broken.setenv("DORT_REPORT_DIR", str(tmp_path))
        train(torch.compile(program, backend="onnxrt"))
    folders = list(tmp_path.iterdir())
    assert len(folders) == (1 if phase in PER_GRAPH else 2)
    for folder in folders:
        problem = json.loads((folder / "problem.json").read_text())["problem"]
        assert "KeyError: 'broken on purpose'" in problem
        runpy.run_path(str(folder / "reproduce.py"))
    assert capsys.readouterr().out == "Both ways give the same.\n" * len(folders)


@pytest.mark.usefixtures("net")
def test_no_report_is_written_of_what_torch_refuses(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("DORT_REPORT_DIR", str(tmp_path))
    x = torch.randn(3, requires_grad=True)
    torch.compile(lambda x: torch.special.zeta(x, x), backend="onnxrt")(x)
    (text,) = warnings_of(caplog)
    assert text.endswith("Eager mode runs it, and raises the same in backward().")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "phase", ["AOTAutograd", "the places of nodes", "a converter", "the session"]
)
@pytest.mark.usefixtures("net")
def test_it_is_raised_without_fallback(phase: str, monkeypatch: pytest.MonkeyPatch) -> None:
    break_phase(monkeypatch, phase)
    compiled = torch.compile(program, backend="onnxrt", options={"fallback": False})
    with pytest.raises(Exception, match="broken on purpose"):
        train(compiled)


@pytest.mark.parametrize("phase", PHASES)
def test_it_is_raised_in_strict_mode(phase: str, monkeypatch: pytest.MonkeyPatch) -> None:
    break_phase(monkeypatch, phase)
    with pytest.raises(Exception, match="broken on purpose"):
        train(torch.compile(program, backend="onnxrt"))


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, MemoryError])
@pytest.mark.parametrize("phase", ["AOTAutograd", "the places of nodes", "the session"])
@pytest.mark.usefixtures("net")
def test_what_is_no_defect_passes(
    phase: str, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    break_phase(monkeypatch, phase, error)
    with pytest.raises(BaseException, match="broken on purpose") as caught:
        train(torch.compile(program, backend="onnxrt"))
    if phase == "the session" or not issubclass(error, Exception):  # Dynamo wraps the others
        assert caught.type is error


@pytest.mark.usefixtures("net")
def test_one_broken_block_does_not_cost_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    def breaks_once(*args: Any) -> Any:
        calls.append(args)
        return {}["broken on purpose"] if len(calls) == 1 else ()

    def cut(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).exp().cos().sin() * 3

    monkeypatch.setattr("dort_rewriter.compiler.building.try_dump", breaks_once)
    options = OrtBackendOptions(placement={"aten::cos": "torch"})
    compiled = torch.compile(cut, backend=(backend := OrtBackend(options)))
    x = torch.randn(3, 4)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), cut(x))
    assert len(calls) == 2
    assert backend.execution_count == 2


@pytest.mark.usefixtures("net")
def test_the_custom_backend_has_the_net_when_it_leaves_failures_to_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    break_phase(monkeypatch, "the export", KeyError)
    compiled = torch.compile(program, backend=onnx_custom_backend, options={"raise_exc": False})
    torch.testing.assert_close(train(compiled), train(program))
    torch._dynamo.reset()
    with pytest.raises(Exception, match="broken on purpose"):
        train(torch.compile(program, backend=onnx_custom_backend))


@pytest.mark.usefixtures("net")
def test_arguments_are_changed_in_place_once(monkeypatch: pytest.MonkeyPatch) -> None:
    break_phase(monkeypatch, "the session", TypeError)

    def count(x: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        total.add_(x.sum())
        return x * total

    compiled = torch.compile(count, backend="onnxrt")
    x, totals = torch.ones(3), [torch.zeros(()), torch.zeros(())]
    for _ in range(2):
        torch.testing.assert_close(compiled(x, totals[0]), count(x, totals[1]))
    assert totals[0] == totals[1] == 6


@pytest.mark.parametrize(
    "options",
    [
        {"nope": 1},
        {"target_opset": "x"},
        {"target_opset": 17},
        {"ort_session_options": 3},
        {"pre_ort_model_transforms": [3]},
        {"min_block_size": 0},
        {"arena": "mine"},
    ],
)
@pytest.mark.usefixtures("net")
def test_a_wrong_option_reaches_the_user_as_itself(options: dict[str, Any]) -> None:
    compiled = torch.compile(program, backend="onnxrt", options=options)
    for _ in range(2):
        with pytest.raises(OptionError, match=next(iter(options))):
            train(compiled)


def test_a_wrong_argument_of_the_custom_backend_too() -> None:
    compiled = torch.compile(program, backend=onnx_custom_backend, options={"enable": "x"})
    with pytest.raises(OptionError, match="enable_pattern"):
        train(compiled)
    for wrong in ({"target_opset": 99}, {"processor": "TPU"}):
        compiled = torch.compile(program, backend=onnx_custom_backend, options=wrong)
        with pytest.raises(OptionError, match=next(iter(wrong))):
            train(compiled)


@pytest.mark.parametrize("options", [{"fallbck": True}, {"fallback": True}])
def test_options_for_a_backend_that_has_its_own(options: dict[str, Any]) -> None:
    compiled = torch.compile(program, backend=OrtBackend(), options=options)
    for _ in range(2):
        with pytest.raises(OptionError, match=r"fallback|has its options"):
            train(compiled)


def test_every_entry_raises_on_an_unknown_option() -> None:
    wrong = {"fallbck": True}
    with pytest.raises(OptionError, match="did you mean 'fallback'"):
        OrtBackend(wrong)
    for backend in ("onnxrt", make_aot_ort()[0], onnx_custom_backend, onnx_debug_backend):
        torch._dynamo.reset()
        compiled: Any = torch.compile(program, backend=backend, options=wrong)
        with pytest.raises(OptionError, match="'fallbck'"):
            train(compiled)


MODES = ["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("by_name", [True, False])
def test_modes_of_torch_compile_are_taken(mode: str, by_name: bool) -> None:
    backend: Any = "onnxrt" if by_name else OrtBackend()
    compiled = torch.compile(program, backend=backend, mode=mode)
    for _ in range(2):
        torch.testing.assert_close(train(compiled), train(program))


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(OptionError, match=r"'max-autotune'.*not 'fastest'"):
        train(torch.compile(program, backend="onnxrt", mode="fastest"))


def test_a_mode_is_said_to_ask_for_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dort_rewriter")
    train(torch.compile(program, backend="onnxrt", mode="reduce-overhead"))
    assert sum("reduce-overhead" in r.getMessage() for r in caplog.records) == 1


def test_a_graph_that_torch_runs_as_a_whole_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def eigenvalues(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.eigvalsh(x)

    compiled = torch.compile(eigenvalues, backend="onnxrt")
    x = torch.eye(3)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), eigenvalues(x))
    told = warnings_of(caplog)
    assert len(told) == 1
    assert "aten::_linalg_eigh" in told[0]


@pytest.mark.usefixtures("net")
@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
def test_what_torch_does_not_trace_is_no_defect_of_ours(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """AOTAutograd asks whether a size is one that only a run knows."""
    x = torch.linspace(-1, 1, 8).requires_grad_()
    compiled = torch.compile(lambda x: x[x > 0].std(), backend=OrtBackend())
    torch.testing.assert_close(compiled(x), x[x > 0].std())
    said = warnings_of(caplog)
    assert all("defect" not in text for text in said)
    assert not said or "known at run time only" in said[0]
