"""bench: a line for each backend; wrong results are noticed, failures stop nobody else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from dort_rewriter import OptionError
from dort_rewriter.tools import benchmark, cli
from dort_rewriter.tools.benchmark import Benchmark, alternate, largest_difference

QUICK: dict[str, Any] = {"seconds": 0.001}


def make_model() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    return model, (torch.randn(3, 4),)


def run(model: Any, args: Any, **options: Any) -> Benchmark:
    return benchmark.benchmark(model, args, **{**QUICK, "backends": ["onnxrt"], **options})


def test_each_mode_and_backend_has_a_line() -> None:
    model, args = make_model()
    before = [p.clone() for p in model.parameters()]
    model.eval()
    found = run(model, args, backends=["aot_eager", "onnxrt", "onnxrt-freeze"])
    assert [(t.mode, t.backend) for t in found.timings] == [
        *(("inference", b) for b in ("eager", "aot_eager", "onnxrt", "onnxrt-freeze")),
        *(("training", b) for b in ("eager", "aot_eager", "onnxrt")),
    ]
    for timing in found.timings:
        assert timing.error is None
        assert timing.agrees, timing
        assert timing.median_milliseconds is not None
        assert timing.times_eager is not None
    assert found.wrong == ()
    assert found.get("training", "eager").times_eager == 1
    # The model is what it was.
    assert not model.training
    assert all(p.grad is None for p in model.parameters())
    assert all(map(torch.equal, before, model.parameters()))


@pytest.mark.parametrize("name", benchmark.INDUCTOR)
def test_variants_of_inductor_have_its_options(name: str) -> None:
    """What its settings are while it compiles: no kernel needs to be compiled for that."""
    from torch._inductor import config

    seen: dict[str, Any] = {}

    def compile_fx(graph_module: torch.fx.GraphModule, _: Any, **options: Any) -> Any:
        seen.update(options["config_patches"])
        return graph_module.forward

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch._inductor.compile_fx.compile_fx", compile_fx)
        benchmark.make_call(torch.nn.Linear(2, 2), name)(torch.ones(1, 2))
    assert seen.items() >= benchmark.INDUCTOR[name].items()
    assert all(hasattr(config, option) for option in seen)


def test_results_that_are_not_those_of_eager_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(options: Any) -> Any:
        def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
            return lambda *args: [r + 1 for r in graph(*args)]

        return backend

    monkeypatch.setattr(benchmark, "OrtBackend", wrong)
    found = run(*make_model(), modes=["inference"])
    (timing,) = found.wrong
    assert (timing.backend, timing.agrees) == ("onnxrt", False)
    assert "NO" in str(found)


def test_a_backend_that_fails_has_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(options: Any) -> Any:
        def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
            raise ZeroDivisionError("no compiler")

        return backend

    monkeypatch.setattr(benchmark, "OrtBackend", failing)
    found = run(*make_model(), modes=["inference"], backends=["onnxrt", "aot_eager"])
    assert "no compiler" in (found.get("inference", "onnxrt").error or "")
    assert found.get("inference", "aot_eager").agrees
    assert [t.backend for t in found.wrong] == ["onnxrt"]
    assert "onnxrt failed in inference: " in str(found)


def test_a_model_that_draws_random_numbers_is_not_judged() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5))
    found = run(model, (torch.randn(3, 4),))
    assert found.get("inference", "onnxrt").agrees is True
    assert found.get("training", "onnxrt").agrees is None
    assert found.wrong == ()
    assert "random" in str(found)


@pytest.mark.parametrize("assigned", [False, True])
def test_each_backend_starts_from_the_same_state(assigned: bool) -> None:
    class Counting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(4, 2)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if assigned:
                self.calls = self.calls + 1
            else:
                self.calls.add_(1)
            return self.linear(x) * self.calls

    model = Counting()
    found = run(model, (torch.randn(3, 4),))
    assert [t.agrees for t in found.timings] == [True] * 4, str(found)
    assert model.calls == 0


def test_a_function_of_nested_results_and_keywords() -> None:
    def function(x: torch.Tensor, *, scale: torch.Tensor) -> dict[str, Any]:
        return {"a": [x * scale, (x > 0)], "n": x.argmax(-1)}

    x = torch.randn(3, 4, requires_grad=True)
    found = run(function, (x,), kwargs={"scale": torch.tensor(2.0)})
    assert found.model == "function"
    assert found.get("inference", "onnxrt").agrees
    assert found.get("training", "onnxrt").agrees
    assert x.grad is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"modes": ["serving"]}, "Unknown mode 'serving': known are inference, training"),
        ({"backends": ["onnx"]}, "Unknown backend 'onnx': known are "),
        ({"seconds": 0}, "seconds is above 0, not 0"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        run(*make_model(), **options)


def test_models_that_cannot_be_measured() -> None:
    with pytest.raises(OptionError, match="Nothing of the model needs a gradient"):
        run(torch.relu, (torch.ones(3),))
    with pytest.raises(OptionError, match="fails in eager mode, inference: RuntimeError"):
        run(make_model()[0], (torch.ones(3, 5),))


def test_differences() -> None:
    nan, inf = float("nan"), float("inf")
    a = torch.tensor([1.0, nan, inf, -2.0])
    assert largest_difference([a], [a.clone()]) == 0
    assert largest_difference([a + 0.2], [a]) == pytest.approx(0.1)
    assert largest_difference([a.nan_to_num(0.0)], [a]) == inf
    assert largest_difference([a.double()], [a]) == inf
    assert largest_difference([a, None], [a]) == inf
    assert largest_difference([None, 3], [None, 3]) == 0
    assert largest_difference([torch.tensor([True])], [torch.tensor([False])]) == 1
    assert largest_difference([torch.tensor([1 + 1j])], [torch.tensor([1 + 1j])]) == 0
    assert largest_difference([torch.ones(0)], [torch.ones(0)]) == 0
    # A tensor of rounding errors is measured by what stands beside it.
    assert largest_difference([a, torch.tensor(1e-9)], [a, torch.tensor(0.0)]) < 1e-5


def test_steps_alternate() -> None:
    calls: list[str] = []
    steps = {name: lambda name=name: calls.append(name) for name in ("a", "b")}
    spent = alternate(steps, 1e-9, lambda: 0.0)
    assert "".join(calls).startswith("aaaabbbbaaaabbbb")
    assert {len(times) for times in spent.values()} == {15}


def test_the_command_takes_a_model_of_the_user(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "bench_model.py"
    source.write_text(
        "import torch\ndef make():\n    return torch.nn.Linear(4, 2), (torch.ones(3, 4),)\n"
    )
    command = ["bench", f"{source}:make", "--backends", "onnxrt", "--seconds", "0.001"]
    assert cli.main([*command, "--json", "--dynamic", "--cpu-time"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["model"], data["device"], data["threads"]) == ("Linear", "cpu", 1)
    assert len(data["timings"]) == 4
    assert cli.main([*command, "--modes", "inference"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("Linear on cpu, torch ")
    assert "times eager" in text


def test_the_command_has_a_model_of_its_own_and_says_what_is_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(benchmark, "MODEL", {torch.float32: -1.0})
    command = ["bench", "--backends", "onnxrt", "--seconds", "0.001", "--modes", "inference"]
    assert cli.main(command) == 1
    assert "NO" in capsys.readouterr().out
    assert cli.main(["bench", "--modes", "both"]) == 1
    assert "Unknown mode 'both'" in capsys.readouterr().err
