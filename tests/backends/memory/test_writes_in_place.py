"""Arguments that a graph only changes are written where they are, and only where that is right."""

from __future__ import annotations

import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from dort_rewriter.backends.execution_info import ExecutionInfo
from tests.backends.ways import compile_strictly

STEPS = 6
Function = Callable[..., Any]


def _info(backend: Any) -> ExecutionInfo:
    *_, (info,) = backend._all_ort_execution_info.execution_info_per_graph_module.values()
    assert isinstance(info, ExecutionInfo)
    return info


def _writes(backend: Any) -> bool:
    """Whether the calls of the latest graph write to arguments, if they allow it."""
    return "APART" in _info(backend).executor.source  # type: ignore[attr-defined]


def _alike(function: Function, make: Callable[[], tuple[torch.Tensor, ...]]) -> bool:
    """Compare calls with eager mode, arguments too; tell whether arguments are written to."""
    compiled, backend = compile_strictly(function)
    mine, theirs = make(), make()
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(compiled(*mine), function(*theirs))
            torch.testing.assert_close(mine, theirs)
            assert [a.stride() for a in mine] == [a.stride() for a in theirs]
    return _writes(backend)


def _numbers(*shape: int, count: int = 2) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(shape, generator=generator) for _ in range(count))


def _step(p: torch.Tensor, g: torch.Tensor) -> None:
    p.mul_(0.5).add_(g, alpha=-0.1)


def test_an_argument_that_is_only_changed_is_written_to() -> None:
    assert _alike(_step, lambda: _numbers(3, 5))


def test_the_session_writes_to_the_argument() -> None:
    compiled, backend = compile_strictly(_step)
    p, g = _numbers(3, 5)
    version = p._version
    compiled(p, g)
    compiled(p, g)
    before, address = p.clone(), p.data_ptr()
    results = _info(backend).executor.boxed([p, g])
    assert results[0] is p
    assert p.data_ptr() == address
    torch.testing.assert_close(p, before * 0.5 - 0.1 * g)
    assert p._version == version + 2


def test_an_old_value_that_is_returned_is_kept() -> None:
    def function(p: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        old = p.clone()
        p.mul_(0.5).add_(g)
        return old

    _alike(function, lambda: _numbers(4))


def test_an_old_value_that_is_read_later_is_kept() -> None:
    def function(p: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        product = p @ g
        p.mul_(0.5).add_(g)
        return product + p

    _alike(function, lambda: _numbers(4, 4))


def test_a_new_value_that_is_returned_too_has_its_own_memory() -> None:
    def function(p: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        new = p * 0.5 + g
        p.copy_(new)
        return new

    compiled, _ = compile_strictly(function)
    p, g = _numbers(4)
    with torch.no_grad():
        new = compiled(p, g)
    assert new.data_ptr() != p.data_ptr()
    torch.testing.assert_close(new, p)


def test_arguments_change_places() -> None:
    def function(p: torch.Tensor, q: torch.Tensor) -> None:
        old = p.clone()
        p.copy_(q * 2 + p)
        q.copy_(old * 3 + q)

    def exchange(p: torch.Tensor, q: torch.Tensor) -> None:
        old = p.clone()
        p.copy_(q)
        q.copy_(old * 3 + q)

    _alike(function, lambda: _numbers(4))
    _alike(exchange, lambda: _numbers(4))


def test_an_argument_is_read_for_the_new_value_of_another() -> None:
    def function(p: torch.Tensor, q: torch.Tensor, g: torch.Tensor) -> None:
        p.add_(g).mul_(0.5)
        q.add_(p, alpha=2.0).mul_(0.25)

    _alike(function, lambda: _numbers(5, count=3))


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.t(),
        lambda x: x[:, ::2],
        lambda x: x[1:],
        lambda x: x[0],
        lambda x: x.view(-1)[3:].view(-1),
    ],
    ids=["transposed", "strided", "offset", "row", "flat"],
)
def test_views_as_arguments(view: Callable[[torch.Tensor], torch.Tensor]) -> None:
    def make() -> tuple[torch.Tensor, ...]:
        base, g = _numbers(6, 6)
        return view(base), view(g), base

    def function(p: torch.Tensor, g: torch.Tensor, base: torch.Tensor) -> None:
        p.mul_(0.5).add_(g)

    compiled, _ = compile_strictly(function)
    mine, theirs = make(), make()
    for _ in range(3):
        compiled(*mine)
        function(*theirs)
        torch.testing.assert_close(mine[2], theirs[2])


def test_an_expanded_argument_is_an_error_as_in_eager_mode() -> None:
    compiled, _ = compile_strictly(_step)
    compiled(*_numbers(3, 4))
    p, g = torch.zeros(1, 4).expand(3, 4), torch.ones(3, 4)
    with pytest.raises(RuntimeError, match="more than one element"):
        compiled(p, g)
    assert p.tolist() == torch.zeros(3, 4).tolist()


def test_overlapping_arguments_come_later() -> None:
    compiled, backend = compile_strictly(_step)
    compiled(*_numbers(4))
    compiled(*_numbers(4))
    info = _info(backend)
    memory = torch.arange(6.0)
    p, g = memory[:4], memory[2:]
    (result,) = info.executor.boxed([p, g])
    assert result is not p
    torch.testing.assert_close(result, p * 0.5 - 0.1 * g)
    assert memory.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


def test_arguments_that_move_between_calls() -> None:
    """What was made of earlier addresses is not used for others, whoever has them by then."""
    compiled, backend = compile_strictly(_step)
    memory = torch.randn(24)
    places = [(0, 4), (0, 4), (0, 8), (12, 8), (12, 16), (16, 12), (0, 4), (0, 4), (0, 20)]
    with torch.no_grad():
        for first, second in places:
            p, g = memory[first : first + 4], memory[second : second + 4]
            before, old, grad = memory.clone(), p.clone(), g.clone()
            compiled(p, g)
            _step(old, grad)
            before[first : first + 4] = old
            torch.testing.assert_close(memory, before)
    assert _writes(backend)


def test_calls_that_overlap_in_time() -> None:
    """Each thread steps parameters of its own through one compiled function."""
    compiled, backend = compile_strictly(_step)
    given = [_numbers(50, 40) for _ in range(4)]
    compiled(*_numbers(50, 40))
    compiled(*_numbers(50, 40))
    run = _info(backend).executor.boxed
    with ThreadPoolExecutor(len(given)) as pool:
        list(pool.map(lambda pair: [run([*pair]) for _ in range(50)], given))
    for p, g in given:
        expected, _ = _numbers(50, 40)
        for _ in range(50):
            _step(expected, g)
        torch.testing.assert_close(p, expected)


def test_one_storage_without_overlap_is_fine() -> None:
    compiled, backend = compile_strictly(_step)
    compiled(*_numbers(4))
    memory = torch.arange(8.0)
    p, g = memory[:4], memory[4:]
    (result,) = _info(backend).executor.boxed([p, g])
    assert result is p
    torch.testing.assert_close(memory[:4], torch.arange(4.0) * 0.5 - 0.1 * g)


def test_a_wrong_index_leaves_what_eager_mode_leaves(capfd: pytest.CaptureFixture[str]) -> None:
    """What stands before it is written once, and nothing is printed."""

    def function(p: torch.Tensor, g: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        p.mul_(0.5).add_(g)
        return g[i]

    compiled, _ = compile_strictly(function)
    p, g = _numbers(4)
    with torch.no_grad():
        compiled(p, g, torch.tensor([1, 2]))
        expected = p.clone()
        for run, written in ((function, expected), (compiled, p)):
            with pytest.raises(IndexError, match="index 200 is out of bounds"):
                run(written, g, torch.tensor([1, 200]))
    torch.testing.assert_close(p, expected)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("make", "arguments"),
    [
        (torch.optim.AdamW, {"lr": 1e-3}),
        (torch.optim.AdamW, {"lr": 1e-3, "amsgrad": True, "maximize": True}),
        (torch.optim.Adam, {"lr": 1e-3, "weight_decay": 0.1}),
        (torch.optim.SGD, {"lr": 1e-2, "momentum": 0.9, "nesterov": True}),
        (torch.optim.SGD, {"lr": 1e-2, "momentum": 0.9, "weight_decay": 0.1}),
        (torch.optim.RMSprop, {"lr": 1e-3}),
        (torch.optim.RMSprop, {"lr": 1e-3, "momentum": 0.5, "centered": True}),
        (torch.optim.Adagrad, {"lr": 1e-2}),
    ],
    ids=["adamw", "amsgrad", "adam", "nesterov", "sgd", "rmsprop", "centered", "adagrad"],
)
def test_steps_of_optimizers(make: Callable[..., Any], arguments: dict[str, Any]) -> None:
    shapes: list[tuple[int, ...]] = [(6, 5), (5,), (2, 3, 4), (), (1,), (6, 5)]
    mine = [torch.nn.Parameter(torch.randn(s)) for s in shapes]
    theirs = copy.deepcopy(mine)
    ours, eager = make(mine, **arguments), make(theirs, **arguments)
    step, backend = compile_strictly(ours.step, fullgraph=False)
    for _ in range(STEPS):
        for p, q in zip(mine, theirs, strict=True):
            p.grad = torch.randn_like(p)
            q.grad = p.grad.clone()
        step()
        eager.step()
    torch.testing.assert_close(mine, theirs)
    states = [[o.state[p] for p in ps] for o, ps in ((ours, mine), (eager, theirs))]
    torch.testing.assert_close(*states)
    infos = backend._all_ort_execution_info.execution_info_per_graph_module.values()
    assert all("APART" in info.executor.source for (info,) in infos)


def test_a_learning_rate_as_a_tensor() -> None:
    mine = [torch.nn.Parameter(torch.randn(4, 3)), torch.nn.Parameter(torch.randn(3))]
    theirs = copy.deepcopy(mine)
    rates = torch.tensor(1e-2), torch.tensor(1e-2)
    ours, eager = (torch.optim.AdamW(p, lr=r) for p, r in zip((mine, theirs), rates, strict=True))
    step, _ = compile_strictly(ours.step, fullgraph=False)
    for i in range(STEPS):
        for rate in rates:
            rate.fill_(1e-2 / (i + 1))
        for p, q in zip(mine, theirs, strict=True):
            p.grad = torch.randn_like(p)
            q.grad = p.grad.clone()
        step()
        eager.step()
    torch.testing.assert_close(mine, theirs)


def _cached(cache: torch.Tensor, at: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    cache.index_copy_(1, at, rows)
    return cache @ rows.transpose(1, 2)


def _put(cache: torch.Tensor, at: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    cache[:, at] = rows
    return cache @ rows.transpose(1, 2)


@pytest.mark.parametrize("function", [_cached, _put])
def test_rows_of_a_cache(function: Function) -> None:
    compiled, backend = compile_strictly(function)
    mine, theirs = torch.zeros(2, 8, 3), torch.zeros(2, 8, 3)
    address = mine.data_ptr()
    with torch.no_grad():
        for i in range(4):
            at, (rows,) = torch.tensor([i]), _numbers(2, 1, 3, count=1)
            torch.testing.assert_close(
                compiled(mine, at, rows + i), function(theirs, at, rows + i)
            )
            torch.testing.assert_close(mine, theirs)
    assert _writes(backend)
    assert mine.data_ptr() == address


def _turned(
    keys: torch.Tensor, values: torch.Tensor, at: torch.Tensor, rows: torch.Tensor
) -> torch.Tensor:
    """A decoder's step: the angles of a place are looked up for the keys, not for the values."""
    angles = torch.arange(16.0).view(8, 2)[at]
    keys.index_copy_(1, at, rows * angles.cos())
    values.index_copy_(1, at, rows + 1)
    return (keys @ rows.transpose(1, 2)) * values.sum()


def test_two_caches_beside_a_table_of_places() -> None:
    compiled, backend = compile_strictly(_turned)
    mine, theirs = [torch.zeros(2, 8, 2) for _ in "kv"], [torch.zeros(2, 8, 2) for _ in "kv"]
    with torch.no_grad():
        for i in range(4):
            at, (rows,) = torch.tensor([i]), _numbers(2, 1, 2, count=1)
            torch.testing.assert_close(compiled(*mine, at, rows), _turned(*theirs, at, rows))
            torch.testing.assert_close(mine, theirs)
        assert _writes(backend)
        for place in (8, -9):
            with pytest.raises((IndexError, RuntimeError)):
                compiled(*mine, torch.tensor([place]), rows)
            torch.testing.assert_close(mine, theirs)


def test_a_cache_is_whole_when_a_place_is_outside() -> None:
    compiled, _ = compile_strictly(_cached)
    cache, rows = torch.zeros(2, 8, 3), torch.ones(2, 1, 3)
    with torch.no_grad():
        compiled(cache, torch.tensor([1]), rows)
        before = cache.clone()
        with pytest.raises((IndexError, RuntimeError)):
            compiled(cache, torch.tensor([8]), rows)
    torch.testing.assert_close(cache, before)


def test_rows_that_come_from_the_cache_itself() -> None:
    def shift(cache: torch.Tensor, at: torch.Tensor) -> None:
        cache.index_copy_(0, at, cache.clone())

    _alike(shift, lambda: (torch.arange(12.0).view(4, 3), torch.tensor([1, 2, 3, 0])))


def test_two_caches_with_places_of_their_own() -> None:
    def function(
        a: torch.Tensor, b: torch.Tensor, i: torch.Tensor, j: torch.Tensor, rows: torch.Tensor
    ) -> None:
        a.index_copy_(0, i, rows)
        b.index_copy_(0, j, rows * 2)

    compiled, _ = compile_strictly(function)
    a, b, rows = torch.zeros(4, 3), torch.zeros(4, 3), torch.ones(1, 3)
    compiled(a, b, torch.tensor([1]), torch.tensor([2]), rows)
    assert a[1].tolist() == [1.0] * 3
    assert b[2].tolist() == [2.0] * 3
    before = a.clone()
    with pytest.raises((IndexError, RuntimeError)):
        compiled(a, b, torch.tensor([9]), torch.tensor([2]), rows + 1)
    torch.testing.assert_close(a, before)


def test_first_calls_are_compared_where_arguments_are_written_to() -> None:
    compiled, backend = compile_strictly(_step, verify=3)
    p, g = _numbers(4)
    expected = p.clone()
    for _ in range(4):
        compiled(p, g)
        _step(expected, g)
    torch.testing.assert_close(p, expected)
    assert _writes(backend)
