"""What is warmed up compiles nothing later, and is left as it was."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn

import dort_rewriter
from dort_rewriter import OrtBackend
from tests.deployment.test_saving import Cache
from tests.torch_facts import COMPILES_OWN_MODULES_IN_PLACE


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("ONNXRT_CHANGE_REWRITER", "1")
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def warmed(
    module: Any, shapes: Any, monkeypatch: pytest.MonkeyPatch, **options: Any
) -> tuple[Any, list[int], OrtBackend]:
    """A compiled module that was warmed up, and a list with an item for each graph."""
    backend = OrtBackend(options)
    graphs: list[int] = []
    original = OrtBackend.__call__

    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        graphs.append(1)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(OrtBackend, "__call__", counted)
    compiled = torch.compile(module, backend=backend)
    dort_rewriter.warm_up(compiled, shapes)
    return compiled, graphs, backend


def sessions_of(backend: OrtBackend) -> int:
    table = backend._all_ort_execution_info.execution_info_per_graph_module
    return sum(len(infos) for infos in table.values())


@torch.no_grad()
@pytest.mark.parametrize("freeze", [False, True])
def test_further_sizes_compile_nothing(freeze: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two sizes are one graph for all, with one session; a batch of one has its own."""
    module = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)).eval()
    shapes = [((2, 4),), ((8, 4),)]
    compiled, graphs, backend = warmed(module, shapes, monkeypatch, freeze=freeze)
    assert (len(graphs), sessions_of(backend)) == (1, 1)
    for n in (2, 3, 8, 64):
        x = torch.randn(n, 4)
        torch.testing.assert_close(compiled(x), module(x))
    assert (len(graphs), sessions_of(backend)) == (1, 1)
    dort_rewriter.warm_up(compiled, [((1, 4),), ((5, 4),)])
    assert (len(graphs), sessions_of(backend)) == (2, 2)


@torch.no_grad()
def test_arguments_by_name_and_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def pick(table: torch.Tensor, ids: torch.Tensor, *, by: float = 1.0) -> torch.Tensor:
        return table[ids] * by

    ids = torch.tensor([0, 1])
    calls = [{"table": (3, 4), "ids": ids, "by": 2.0}, {"table": (5, 4), "ids": ids, "by": 2.0}]
    compiled, graphs, _ = warmed(pick, calls, monkeypatch)
    seen = len(graphs)
    torch.testing.assert_close(compiled(torch.ones(7, 4), ids, by=2.0), torch.full((2, 4), 2.0))
    assert len(graphs) == seen
    assert not any("dynamo" in name for name in vars(ids))
    # By shape, whole numbers are what they were.
    dort_rewriter.warm_up(compiled, [((9, 4), (2,))])
    dort_rewriter.warm_up(compiled, [{"ids": (2,), "table": (9, 4)}])


def test_the_type_of_a_shape_is_what_was_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = torch.compile(nn.Linear(4, 2).double(), backend=OrtBackend())
    with torch.no_grad():
        compiled(torch.ones(2, 4, dtype=torch.float64))
        dort_rewriter.warm_up(compiled, [((3, 4),)])


@torch.no_grad()
def test_state_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Buffers, arguments that are written to, random numbers, gradients."""
    module, x = Cache().eval(), torch.randn(2, 1, 4)
    state = torch.random.get_rng_state()
    compiled, graphs, _ = warmed(module, [(x,)], monkeypatch)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert int(module.length) == 0
    assert not module.keys.any()
    compiled(x)
    assert int(module.length) == 1
    assert len(graphs) == 1

    total = torch.zeros(3)
    add = torch.compile(lambda t, y: t.add_(y), backend=OrtBackend())
    dort_rewriter.warm_up(add, [(total, torch.ones(3))])
    assert not total.any()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("freeze", [False, True])
def test_calls_in_the_mode_of_the_warm_up_compile_nothing(
    mode: Any, freeze: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8)).eval()
    with mode():
        compiled, graphs, _ = warmed(module, [((2, 4),), ((8, 4),)], monkeypatch, freeze=freeze)
    with mode():
        compiled(torch.ones(5, 4))
    assert len(graphs) == 1


def test_threads_race(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that warm up and threads that call, at once: one graph, the right numbers."""
    module = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)).eval()
    compiled = torch.compile(module, backend=OrtBackend(), dynamic=True)
    x = torch.randn(6, 4)
    with torch.no_grad():
        expected = module(x)
    start = threading.Barrier(6)
    right: list[torch.Tensor] = []

    def call() -> None:
        try:
            result = compiled(x)
        except RuntimeError as e:
            # torch has one flag for a process: while any thread traces a graph, Dynamo refuses
            # the calls that come in, whatever the backend.
            if "using FX to symbolically trace" not in str(e):
                raise
        else:
            torch.testing.assert_close(result, expected)
            right.append(result)

    def work(warm: bool) -> None:
        start.wait()
        with torch.no_grad():
            for _ in range(5):
                if warm:
                    dort_rewriter.warm_up(compiled, [((2, 4),), ((8, 4),)])
                call()

    with ThreadPoolExecutor(6) as pool:
        for done in [pool.submit(work, i % 2 == 0) for i in range(6)]:
            done.result()
    call()
    assert right


def test_what_is_no_call_is_refused() -> None:
    compiled = torch.compile(nn.Linear(4, 2), backend=OrtBackend())
    with pytest.raises(dort_rewriter.OptionError, match="a list of calls"):
        dort_rewriter.warm_up(compiled, [])
    with pytest.raises(dort_rewriter.OptionError, match="Each entry is a tuple"):
        dort_rewriter.warm_up(compiled, [3])  # type: ignore[list-item]
    with pytest.raises(dort_rewriter.OptionError, match="a list of calls"):
        dort_rewriter.warm_up(compiled, torch.ones(1, 4))  # type: ignore[arg-type]
    with pytest.raises(dort_rewriter.OptionError, match=r"such as \(tensor,\), .* not Tensor"):
        dort_rewriter.warm_up(compiled, [torch.ones(1, 4)])  # type: ignore[list-item]
    with pytest.raises(dort_rewriter.OptionError, match=r"\(1, 4\) is one shape"):
        dort_rewriter.warm_up(compiled, [(1, 4)])
    with pytest.raises(dort_rewriter.CaptureError, match="is not compiled"):
        dort_rewriter.warm_up(nn.Linear(4, 2), [((3, 4),)])


def levels_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    """How loud each line of the warm-up itself is."""
    return [r.levelname for r in caplog.records if r.name.endswith(".warming")]


def in_place(module: nn.Module) -> nn.Module:
    module.compile(backend="onnxrt")
    return module


def calls_an_lstm() -> Any:
    lstm = nn.LSTM(4, 5)
    return torch.compile(lambda x: lstm(x), backend=OrtBackend())


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(
            lambda: in_place(nn.Sequential(nn.Linear(4, 8), nn.ReLU())),
            marks=pytest.mark.skipif(
                COMPILES_OWN_MODULES_IN_PLACE, reason="Dynamo compiles it on this torch"
            ),
        ),
        lambda: in_place(nn.LSTM(4, 5)),
        lambda: torch.compile(nn.LSTM(4, 5), backend="onnxrt"),
        calls_an_lstm,
    ],
    ids=["sequence in place", "lstm in place", "lstm", "function"],
)
def test_it_is_said_when_nothing_is_compiled(make: Any, caplog: pytest.LogCaptureFixture) -> None:
    other = torch.compile(nn.Linear(4, 2), backend="onnxrt")
    dort_rewriter.warm_up(other, [((5, 3, 4),)])
    compiled = make()
    with caplog.at_level(logging.INFO, "dort_rewriter.deployment"):
        dort_rewriter.warm_up(compiled, [((5, 3, 4),)])
        dort_rewriter.warm_up(compiled, [((5, 3, 4),)])
    assert levels_of(caplog) == ["WARNING", "WARNING"]
    assert "Nothing was compiled for 1 calls" in caplog.text


def begins_with_a_break(x: torch.Tensor) -> torch.Tensor:
    torch._dynamo.graph_break()
    return x * 2 + 1


def runs_in_torch(x: torch.Tensor) -> torch.Tensor:
    return torch.linalg.svd(x)[1]


class Own(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sin() + 1


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.compile(nn.Linear(4, 2), backend="onnxrt"),
        lambda: torch.compile(nn.Linear(4, 2), backend=OrtBackend()),
        lambda: torch.compile(begins_with_a_break, backend="onnxrt"),
        lambda: torch.compile(begins_with_a_break, backend=OrtBackend()),
        lambda: torch.compile(runs_in_torch, backend=OrtBackend()),
        lambda: torch.compile(lambda x: x.view(-1), backend=OrtBackend()),
        lambda: torch.compile(Own().forward, backend=OrtBackend()),
        lambda: in_place(Own()),
        lambda: in_place(nn.Sequential(Own(), Own())),
    ],
)
@pytest.mark.parametrize("called", [False, True])
def test_what_is_compiled_already_is_no_reason_to_warn(
    make: Any, called: bool, caplog: pytest.LogCaptureFixture
) -> None:
    compiled, x = make(), torch.ones(3, 4)
    if called:
        with torch.no_grad():
            compiled(x)
    with caplog.at_level(logging.INFO, "dort_rewriter.deployment"):
        for _ in range(2):
            dort_rewriter.warm_up(compiled, [(x,)])
    assert levels_of(caplog) == ["INFO", "INFO"]
