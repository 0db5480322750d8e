"""Backends for people who write backends."""

from __future__ import annotations

import io
import logging
from typing import Any

import pytest
import torch

from dort_rewriter import (
    CaptureError,
    OptionError,
    compose_backends,
    onnx_custom_backend,
    optimize_for_inference_backend,
    print_graph_backend,
)
from dort_rewriter.tools.graph_table import graph_table, text_table


@pytest.fixture(autouse=True)
def _fresh() -> Any:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.cat([x.abs(), y + 1], dim=0)


def failing(graph_module: Any, args: Any) -> Any:
    raise ValueError("no, thanks\nand more lines")


INPUTS = (torch.arange(3.0) - 1, torch.ones(2))


def test_the_graph_is_printed_and_run(capsys: pytest.CaptureFixture[str]) -> None:
    got = torch.compile(function, backend=print_graph_backend)(*INPUTS)
    torch.testing.assert_close(got, function(*INPUTS))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["opcode", "name", "target", "args", "value"]
    assert set(lines[1]) == {"-", " "}
    (cat,) = (line for line in lines if "torch.cat" in line)
    assert cat.startswith("call_function")
    assert cat.endswith("float32[5]")
    assert lines[-1].startswith("output")


def test_the_table_goes_where_asked(capsys: pytest.CaptureFixture[str]) -> None:
    stream = io.StringIO()
    backend = lambda graph, args: print_graph_backend(graph, args, file=stream)  # noqa: E731
    torch.compile(function, backend=backend)(*INPUTS)
    assert "torch.cat" in stream.getvalue()
    assert capsys.readouterr().out == ""


def test_a_table_of_aten_operators() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    text = graph_table(make_fx(function, tracing_mode="symbolic")(*INPUTS))
    assert "aten.cat.default" in text
    assert "+ s" in text, "sizes are symbols"


def test_numbers_stand_to_the_right_and_long_cells_are_cut() -> None:
    text = text_table(["name", "n"], [["a" * 80, 5], ["b", 10]])
    first, rule, long, short = text.splitlines()
    assert first.split() == ["name", "n"]
    assert len(rule) == 60 + 2 + 2
    assert long.endswith("...   5")
    assert short.endswith("  10")


def test_torchscript_runs_an_inference_graph(caplog: pytest.LogCaptureFixture) -> None:
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU()
    ).eval()
    compiled = torch.compile(model, backend=optimize_for_inference_backend)
    x = torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(compiled(x), model(x))
        model[0].bias.add_(1)  # a weight that changes is seen
        torch.testing.assert_close(compiled(x), model(x))
    assert "eager" not in caplog.text


def test_torchscript_leaves_a_graph_that_trains(caplog: pytest.LogCaptureFixture) -> None:
    model = torch.nn.Linear(3, 2)
    torch.compile(model, backend=optimize_for_inference_backend)(torch.ones(3)).sum().backward()
    torch.testing.assert_close(model.bias.grad, torch.ones(2))
    assert "needs gradients runs in eager mode" in caplog.text


def test_torchscript_leaves_what_it_refuses(caplog: pytest.LogCaptureFixture) -> None:
    compiled = torch.compile(function, backend=optimize_for_inference_backend, dynamic=True)
    with caplog.at_level(logging.WARNING), torch.no_grad():
        torch.testing.assert_close(compiled(*INPUTS), function(*INPUTS))


def test_the_first_that_compiles_is_taken(caplog: pytest.LogCaptureFixture) -> None:
    backend = compose_backends("no_such_backend", failing, onnx_custom_backend, "inductor")
    compiled = torch.compile(function, backend=backend)
    torch.testing.assert_close(compiled(*INPUTS), function(*INPUTS))
    assert backend.chosen == ("onnx_custom_backend",)
    (tried,) = backend.attempts
    assert [a.backend for a in tried] == ["no_such_backend", "failing", "onnx_custom_backend"]
    assert "no_such_backend" in str(tried[0].error)
    assert tried[1].error == "ValueError: no, thanks"
    assert "Graph 0: no_such_backend: InvalidBackend" in caplog.text
    assert "onnx_custom_backend: compiled the graph" in caplog.text
    assert "ValueError: no, thanks" in backend.report()


def test_each_graph_is_tried_and_eager_comes_last() -> None:
    def with_break(x: torch.Tensor) -> torch.Tensor:
        x = x + 1
        torch._dynamo.graph_break()
        return x * 2

    backend = compose_backends(failing)
    x = torch.ones(2)
    torch.testing.assert_close(torch.compile(with_break, backend=backend)(x), with_break(x))
    assert backend.chosen == ("eager", "eager")
    assert backend.report().startswith("graph 0, 1: failing: ValueError")


def test_without_a_fallback_all_reasons_are_raised() -> None:
    backend = compose_backends("no_such_backend", failing, fallback=None)
    graph = torch.fx.symbolic_trace(function)
    with pytest.raises(CaptureError, match=r"(?s)no_such_backend: .*failing: ValueError: no, th"):
        backend(graph, INPUTS)
    assert backend.chosen == (None,)
    with pytest.raises(CaptureError, match="No backend compiled the graph"):
        torch.compile(function, backend=backend)(*INPUTS)


def test_options_reach_the_backends() -> None:
    storage: dict[str, Any] = {}
    backend = compose_backends(onnx_custom_backend)
    torch.compile(function, backend=backend, options={"storage": storage})(*INPUTS)
    assert len(storage["instance"]) == 1


def test_nothing_to_compose_is_refused() -> None:
    with pytest.raises(OptionError, match="needs a backend"):
        compose_backends()
