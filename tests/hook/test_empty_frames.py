"""What Dynamo reads for ``backend="onnxrt"`` and finds no graph in is one line of log."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._dynamo

from dort_rewriter import install, uninstall
from dort_rewriter.hook import empty_frames
from tests.torch_facts import COMPILES_OWN_MODULES_IN_PLACE


@pytest.fixture(autouse=True)
def hooked(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("ONNXRT_CHANGE_REWRITER", "1")
    install()
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.INFO, logger=empty_frames.logger.name)

    def told() -> list[str]:
        found = [r for r in caplog.records if r.name == empty_frames.logger.name]
        assert all(r.levelno == logging.INFO for r in found)
        return [r.getMessage().partition(":")[0] for r in found]

    return told


def compiled(model: Callable[..., Any], backend: Any = "onnxrt") -> Callable[..., Any]:
    function: Callable[..., Any] = torch.compile(model, backend=backend)
    return function


def count(x: torch.Tensor) -> int:
    return _rank(x) + x.shape[0]


def _rank(x: torch.Tensor) -> int:
    torch._dynamo.graph_break()
    return x.dim()


def test_a_recurrent_module_is_told_by_its_name(lines: Callable[[], list[str]]) -> None:
    model = torch.nn.LSTM(4, 3)
    call = compiled(model)
    x = torch.ones(2, 1, 4)
    assert torch.equal(call(x)[0], model(x)[0])
    call(x)
    (line,) = lines()
    assert line.startswith("Dynamo found no graph in LSTM (")
    assert "rnn.py" in line


def test_it_is_told_again_after_a_reset(lines: Callable[[], list[str]]) -> None:
    for _ in range(2):
        compiled(torch.nn.GRU(4, 3))(torch.ones(2, 1, 4))
        torch._dynamo.reset()
    assert [line.partition(" (")[0] for line in lines()] == ["Dynamo found no graph in GRU"] * 2


def test_a_graph_that_a_backend_refuses_is_none_that_is_missing(
    lines: Callable[[], list[str]],
) -> None:
    """Dynamo counts it only when it is compiled."""

    def drawn(x: torch.Tensor) -> torch.Tensor:
        return x.bernoulli(0.4)

    options = {"fallback": False}
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="is not implemented"):
        torch.compile(drawn, backend="onnxrt", options=options)(torch.ones(2, requires_grad=True))
    assert lines() == []


def test_what_a_function_calls_is_not_told_once_more(lines: Callable[[], list[str]]) -> None:
    assert compiled(count)(torch.ones(2, 3)) == 4
    (line,) = lines()
    assert line.startswith("Dynamo found no graph in count (")
    assert __file__ in line


class Own(torch.nn.Module):
    """A class that Dynamo reads."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


@pytest.mark.parametrize("backend", ["onnxrt", "aot_eager"])
@pytest.mark.parametrize("make", [lambda: torch.nn.Sequential(torch.nn.Linear(4, 3)), Own])
def test_a_module_of_torch_compiled_in_place_is_told(
    make: Callable[[], torch.nn.Module], backend: str, lines: Callable[[], list[str]]
) -> None:
    module, x = make(), torch.ones(2, 4)
    expected = module(x)
    module.compile(backend=backend)
    assert torch.equal(module(x), expected)
    is_told = backend == "onnxrt" and not isinstance(module, Own)
    if COMPILES_OWN_MODULES_IN_PLACE or not is_told:
        assert lines() == []
    else:
        (line,) = lines()
        assert line.startswith("Dynamo does not read Sequential, ")


@pytest.mark.parametrize(
    ("model", "backend"),
    [
        (torch.nn.Linear(4, 3), "onnxrt"),
        (torch.nn.LSTM(4, 3), "aot_eager"),
        (torch.nn.LSTM(4, 3), lambda graph_module, _: graph_module),
    ],
    ids=["with a graph", "of another backend", "of a function"],
)
def test_nothing_is_told(
    model: torch.nn.Module, backend: Any, lines: Callable[[], list[str]]
) -> None:
    compiled(torch.nn.Linear(2, 2))  # Dynamo calls back from here on
    compiled(model, backend)(torch.ones(2, 1, 4))
    assert lines() == []


def test_nothing_is_told_where_dynamo_has_other_names(
    lines: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(empty_frames, "_reads", lambda frame: frame.f_locals["no such name"])
    x = torch.ones(2, 1, 4)
    assert compiled(torch.nn.LSTM(4, 3))(x)[0].shape == (2, 1, 3)
    assert lines() == []


def test_dynamo_calls_back_no_more_when_the_hook_is_taken_back() -> None:
    handler = torch._dynamo.callback_handler
    compiled(torch.nn.Linear(2, 2))
    compiled(torch.nn.Linear(2, 2))
    assert handler.end_callbacks.count(empty_frames._on_end) == 1
    uninstall()
    try:
        assert empty_frames._on_end not in handler.end_callbacks
        assert empty_frames._on_start not in handler.start_callbacks
    finally:
        install()
