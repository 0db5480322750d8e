"""What a block does when what it was built for changes, in one thread and in several."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from dort_rewriter import ExecutionError, OrtBackend
from dort_rewriter.backends.onnxrt_graphs import make_recipe
from dort_rewriter.compiler.block import make_block
from dort_rewriter.plan.graph_plan import plan_whole

VECTOR, MATRIX = torch.randn(3), torch.randn(2, 3)


def expected(x: torch.Tensor, n: torch.Tensor) -> tuple[torch.Tensor]:
    return (torch.ops.aten.mul.Tensor(torch.ops.aten.relu.default(x), n),)


class Watched:
    """A block of ``relu(x) * n``, how often it was built and what each session was given."""

    def __init__(self, **changes: Any) -> None:
        self.builds = 0
        self.ranks: list[tuple[int, int]] = []
        recipe = make_recipe(OrtBackend({"cache": False}))
        recipe = dataclasses.replace(recipe, around=self.around, **changes)
        self.graph = make_fx(expected)(VECTOR, self.number(0.5))
        self.block = make_block(plan_whole(self.graph, recipe))

    def around(self, graph: torch.fx.GraphModule, run: Callable[..., Any]) -> Callable[..., Any]:
        self.builds += 1
        placeholder = next(n for n in graph.graph.nodes if n.op == "placeholder")

        def call(args: list[Any]) -> Any:
            self.ranks.append((placeholder.meta["val"].dim(), args[0].dim()))
            return run(args)

        return call

    def number(self, value: float) -> torch.Tensor:
        return torch.tensor(value, dtype=torch.float64)

    def check(self, x: torch.Tensor, n: torch.Tensor) -> None:
        torch.testing.assert_close(self.block.boxed([x, n]), expected(x, n))


def test_a_changed_number_leaves_the_choice_between_ranks() -> None:
    watched = Watched()
    one, two = watched.number(0.5), watched.number(0.25)
    for x, n in ((VECTOR, one), (MATRIX, one), (VECTOR, two), (MATRIX, two), (VECTOR, one)):
        watched.check(x, n)
    watched.ranks.clear()
    for x in (MATRIX, VECTOR):
        watched.check(x, one)
    assert watched.ranks == [(2, 2), (1, 1)]


def test_changed_weights_leave_the_choice_between_ranks() -> None:
    class Weighted(Watched):
        def number(self, value: float) -> torch.Tensor:
            return torch.nn.Parameter(torch.tensor(value))

    watched = Weighted()
    names = [n.name for n in watched.graph.graph.nodes if n.op == "placeholder"]
    recipe = dataclasses.replace(watched.block.recipe, weights=frozenset(names[1:]))
    watched.block = make_block(plan_whole(watched.graph, recipe))
    weight = watched.number(0.5)
    with torch.no_grad():
        for x in (VECTOR, MATRIX, VECTOR):
            watched.check(x, weight)
            weight.add_(1.0)
        watched.check(VECTOR, weight)
        watched.ranks.clear()
        watched.check(MATRIX, weight)
        watched.check(VECTOR, weight)
    assert [given for _, given in watched.ranks] == [given for given, _ in watched.ranks]


def test_threads_that_see_a_changed_number_build_once() -> None:
    watched = Watched()
    watched.check(VECTOR, watched.number(0.5))
    stale = watched.block._boxed
    assert stale is not None
    for _ in range(3):  # what other threads have in hand when the first one builds
        other = watched.number(0.25)
        torch.testing.assert_close(stale([VECTOR, other]), expected(VECTOR, other))
    assert watched.builds == 2


def test_a_graph_left_to_torch_stays_there_when_a_number_changes() -> None:
    watched = Watched()
    watched.check(VECTOR, watched.number(0.5))
    stale = watched.block._boxed
    assert stale is not None
    watched.block._fall_back(ExecutionError("a run of another thread failed"), [])
    other = watched.number(0.25)
    torch.testing.assert_close(stale([VECTOR, other]), expected(VECTOR, other))
    assert watched.builds == 1
    watched.ranks.clear()
    watched.check(VECTOR, other)
    assert watched.ranks == []  # no session


@pytest.mark.load_sensitive
@pytest.mark.parametrize("failing", [False, True])
def test_numbers_vary_in_many_threads(failing: bool) -> None:
    """Each has results of its own numbers, while sessions are built, fail and fall back."""
    watched = Watched()
    around, calls = watched.around, iter(range(10_000))

    def fail_at_times(graph: Any, run: Callable[..., Any]) -> Callable[..., Any]:
        def call(args: list[Any]) -> Any:
            if failing and next(calls) % 7 == 6:
                raise ExecutionError("it fails")
            return run(args)

        return around(graph, call)

    watched.block.recipe = dataclasses.replace(watched.block.recipe, around=fail_at_times)
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for i in range(20):
                x = (VECTOR, MATRIX)[(i + number) % 2]
                watched.check(x, watched.number(1.0 + number / 4 + i % 2))
        except BaseException as error:  # the test says which
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
