"""The fastest of several ways to run a graph is found while it runs."""

from __future__ import annotations

import copy
import logging
import threading
import time
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import dort_rewriter
from dort_rewriter import OrtBackend
from dort_rewriter.compiler import autotune
from dort_rewriter.compiler.autotune import MEASURES, Autotuned


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()


@pytest.mark.load_sensitive
def test_the_fastest_candidate_is_kept() -> None:
    """After a round to warm up and a few that are timed, the others are forgotten."""
    calls: list[str] = []

    def slow(args: list[Any]) -> Any:
        calls.append("slow")
        time.sleep(0.01)
        return (args[0],)

    def fast(args: list[Any]) -> Any:
        calls.append("fast")
        return (args[0],)

    tuned = Autotuned({"slow": slow, "fast": fast})
    for i in range(2 * (1 + MEASURES) + 3):
        assert tuned.boxed([i]) == (i,)
    assert tuned.choice == "fast"
    assert calls.count("slow") == 1 + MEASURES
    assert calls[-3:] == ["fast"] * 3


def test_training_is_the_same_while_candidates_are_tried(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Every call gives eager's results and gradients, whoever computes them."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 2))
    reference = copy.deepcopy(module)
    backend = OrtBackend({"autotune": True})
    compiled = torch.compile(module, backend=backend)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (module, reference)]
    with caplog.at_level(logging.INFO, "dort_rewriter"):
        for step in range(3 * (1 + MEASURES) + 2):
            x = torch.randn(3, 4)
            losses = []
            for optimizer, call in zip(optimizers, (compiled, reference), strict=True):
                torch.manual_seed(step)
                optimizer.zero_grad()
                loss = call(x).square().sum()
                loss.backward()
                optimizer.step()
                losses.append(loss.detach())
            torch.testing.assert_close(losses[0], losses[1])
    for p, q in zip(module.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(p, q)
    chosen = [r for r in caplog.records if "from now on" in r.message]
    assert len(chosen) == 2  # forward and backward


@pytest.mark.parametrize("fastest", [0, -1])
def test_the_plan_says_what_was_chosen(fastest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is that of the fastest, with the times of all; what is explained is what runs on."""
    median = iter(range(1, 100) if fastest == 0 else range(100, 0, -1))
    monkeypatch.setattr(autotune.statistics, "median", lambda _: next(median) * 1e-6)
    module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    found = dort_rewriter.explain(module, torch.randn(3, 4), backend_options={"autotune": True})
    graphs = [graph for captured in found.graphs for graph in captured.lowered]
    assert [graph.kind for graph in graphs] == ["forward", "backward"]
    for graph in graphs:
        chosen = list(graph.timed)[fastest]
        assert chosen == ["ONNX Runtime", "torch"][fastest]
        assert f"{chosen}, chosen by autotune: ONNX Runtime " in str(found)
        counts = graph.counts()
        total = sum(graph.ops.values())
        assert counts["in ONNX Runtime" if fastest == 0 else "in torch"] == total
        assert len(graph.models) == (1 if fastest == 0 else 0)


@pytest.mark.parametrize("how", ["compile", "mode"])
def test_candidates_are_tried_without_aot_too(how: str) -> None:
    x = torch.randn(3)
    graph = make_fx(lambda x: torch.ops.aten.relu.default(x))(x)
    asked = {} if how == "mode" else {"autotune": True}
    backend = OrtBackend({"use_aot_autograd": False, "fallback": False, **asked})
    run = (
        backend.compile(graph, (x,))
        if how == "compile"
        else backend(graph, (x,), mode="max-autotune")
    )
    calls = 3 * (1 + MEASURES)
    for _ in range(calls):
        torch.testing.assert_close(run(x), x.relu())
    assert 0 < backend.execution_count < calls  # torch was tried as well


def test_weights_may_change_while_candidates_are_tried() -> None:
    """A frozen candidate notices, as it does alone."""
    module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    compiled = torch.compile(module, backend=OrtBackend({"autotune": True, "freeze": True}))
    x = torch.randn(3, 4)
    with torch.no_grad():
        for _ in range(3 * (1 + MEASURES) + 2):
            torch.testing.assert_close(compiled(x), module(x))
            module[0].weight.add_(0.1)  # type: ignore[operator, union-attr]


@pytest.mark.load_sensitive
def test_a_candidate_may_call_the_graph_again() -> None:
    """So does what interrupts one: a signal handler, the end of an object."""
    calls: list[str] = []

    def first(args: list[Any]) -> Any:
        calls.append("first")
        depth = args.pop()
        return tuned.boxed([depth - 1]) if depth else ("done",)

    def second(args: list[Any]) -> Any:
        calls.append("second")
        return first(args)

    tuned = Autotuned({"first": first, "second": second})
    results: list[Any] = []

    def work() -> None:
        results.extend(tuned.boxed([2]) for _ in range(2 * (1 + MEASURES) + 1))

    thread = threading.Thread(target=work, daemon=True)  # it would wait for itself for ever
    thread.start()
    thread.join(60)
    assert results == [("done",)] * (2 * (1 + MEASURES) + 1)
    assert tuned.choice in ("first", "second")


def test_a_candidate_that_raises_leaves_the_others_to_be_tried() -> None:
    fails = iter([True, False])

    def first(args: list[Any]) -> Any:
        if next(fails, False):
            raise KeyboardInterrupt
        return ("first",)

    tuned = Autotuned({"first": first, "second": lambda args: ("second",)})
    with pytest.raises(KeyboardInterrupt):
        tuned.boxed([])
    assert [tuned.boxed([]) for _ in range(2)] == [("first",), ("second",)]
