"""Graphs that only write to arguments, by programs of one kind: a session is given addresses."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch

from dort_rewriter.compiler import building
from dort_rewriter.compiler.building import find_addresses
from dort_rewriter.errors import ExecutionError
from dort_rewriter.optimize.patterns.kernels import elementwise
from dort_rewriter.runtime.session import create_session
from tests.backends.ways import compile_strictly

Tensors = list[torch.Tensor]
Step = Callable[[Tensors, Tensors], None]

SHAPES = [(3,), (1,), (40, 70), (), (130, 131), (2, 3, 5), (16,)]
"""Some are of one number, one is more than a thread takes at once."""


def _sgd(parameters: Tensors, gradients: Tensors) -> None:
    for p, g in zip(parameters, gradients, strict=True):
        p.add_(g, alpha=-0.1)


def _other(parameters: Tensors, gradients: Tensors) -> None:
    """No optimizer's: it runs by instructions."""
    for p, g in zip(parameters, gradients, strict=True):
        p.mul_(torch.tanh(g)).add_(torch.exp(-g.abs()), alpha=0.5)


def _momentum(parameters: Tensors, gradients: Tensors) -> None:
    """Both are written to."""
    for p, g in zip(parameters, gradients, strict=True):
        g.mul_(0.9).add_(p)
        p.add_(g, alpha=-0.1)


STEPS: dict[str, Step] = {"sgd": _sgd, "other": _other, "momentum": _momentum}


def _make(shapes: Sequence[tuple[int, ...]] = SHAPES, seed: int = 0) -> tuple[Tensors, Tensors]:
    generator = torch.Generator().manual_seed(seed)
    return tuple([torch.randn(s, generator=generator) for s in shapes] for _ in range(2))


def _executor(backend: Any) -> Any:
    *_, (info,) = backend._all_ort_execution_info.execution_info_per_graph_module.values()
    return info.executor


def _is_addressed(backend: Any) -> bool:
    return "addresses" in _executor(backend).session.input_types


def _check(compiled: Any, step: Step, mine: Any, theirs: Any, calls: int = 3) -> None:
    with torch.no_grad():
        for _ in range(calls):
            compiled(*mine)
            step(*theirs)
            torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("name", STEPS)
def test_numbers_are_those_of_eager_mode(name: str) -> None:
    compiled, backend = compile_strictly(STEPS[name])
    mine = _make()
    addresses = [t.data_ptr() for t in (*mine[0], *mine[1])]
    _check(compiled, STEPS[name], mine, _make())
    assert _is_addressed(backend)
    assert [t.data_ptr() for t in (*mine[0], *mine[1])] == addresses


@pytest.mark.parametrize("name", STEPS)
def test_other_tensors_are_given_in_another_call(name: str) -> None:
    compiled, backend = compile_strictly(STEPS[name])
    for seed in range(3):
        _check(compiled, STEPS[name], _make(seed=seed), _make(seed=seed), calls=2)
    first, second = _make(seed=3), _make(seed=4)
    for mine in (first, second, first):  # in turn
        _check(compiled, STEPS[name], mine, copy.deepcopy(mine), calls=1)
    assert _is_addressed(backend)


@pytest.mark.parametrize("name", STEPS)
def test_gradients_are_made_anew(name: str) -> None:
    compiled, _ = compile_strictly(STEPS[name])
    (mine, _), (theirs, _) = _make(), _make()
    for seed in range(4):
        _check(
            compiled, STEPS[name], (mine, _make(seed=seed)[1]), (theirs, _make(seed=seed)[1]), 1
        )


@pytest.mark.parametrize("name", STEPS)
def test_what_overlaps_is_not_written_in_place(name: str) -> None:
    """All new values are made of the old ones, as in the graph; then they are copied."""

    def make() -> tuple[Tensors, Tensors]:
        whole = torch.linspace(-1, 1, 9)
        return [whole[:4], whole[1:5]], [whole[4:8], whole[5:]]

    compiled, backend = compile_strictly(STEPS[name])
    _check(compiled, STEPS[name], _make([(4,), (4,)]), _make([(4,), (4,)]))
    assert _is_addressed(backend)
    executor = _executor(backend)
    first = None  # which of a parameter and its gradient: torch 2.13 takes what is written first
    for parameters, gradients in (_make([(4,), (4,)]), make()):
        given = [t for pair in zip(parameters, gradients, strict=True) for t in pair]
        before = [t.clone() for t in given]
        results = executor.boxed(list(given))
        values = [_new_values(STEPS[name], before, k) for k in (0, 1)]
        if first is None:
            first = next(k for k in (0, 1) if _are_alike(results, values[k]))
            assert all(any(r is t for t in given) for r in results)
            continue
        assert _are_alike(results, values[first])
        torch.testing.assert_close(given, before)


def _new_values(step: Step, given: Tensors, first: int) -> Tensors:
    """What a step writes, in the order of the arguments: parameters come first, or second."""
    new = [t.clone() for t in given]
    step(new[first::2], new[1 - first :: 2])
    return [a for a, b in zip(new, given, strict=True) if not torch.equal(a, b)]


def _are_alike(some: Iterable[torch.Tensor], others: Iterable[torch.Tensor]) -> bool:
    """Whether these are the same values, in any order."""
    a, b = (sorted(ts, key=lambda t: float(t.sum())) for ts in (some, others))
    return len(a) == len(b) and all(map(torch.allclose, a, b))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_the_default_type_is_none_of_the_results(dtype: torch.dtype) -> None:
    """What cannot be written in place is written to new tensors."""
    torch.set_default_dtype(dtype)
    try:
        compiled, backend = compile_strictly(_sgd)

        def make() -> tuple[Tensors, Tensors]:
            wide = [torch.linspace(-1, 1, 64 * n, dtype=torch.float32) for n in (4, 9)]
            return [t.view(-1, 16)[:, ::2] for t in wide], [t.cos().view(-1, 8)[::2] for t in wide]

        _check(compiled, _sgd, make(), make())
        assert _is_addressed(backend)
    finally:
        torch.set_default_dtype(torch.float32)


def test_no_address_is_no_crash() -> None:
    compiled, backend = compile_strictly(_sgd)
    _check(compiled, _sgd, _make(), _make())
    session = _executor(backend).session.ort
    (given,) = session.get_inputs()
    with pytest.raises(Exception, match="an address is missing"):
        session.run(None, {given.name: np.zeros(given.shape, np.int64)})


def test_what_is_empty_has_no_step() -> None:
    compiled, _ = compile_strictly(_sgd)
    shapes = [(3,), (0, 4), (5,)]
    _check(compiled, _sgd, _make(shapes), _make(shapes))


def test_transposed_parameters_are_written_to() -> None:
    def make() -> tuple[Tensors, Tensors]:
        return tuple([t.t() for t in ts] for ts in _make([(3, 5), (7, 2)]))

    compiled, _ = compile_strictly(_sgd)
    _check(compiled, _sgd, make(), make())


def test_the_arguments_have_the_sizes_of_the_graph() -> None:
    """What is at an address is read unchecked."""
    compiled, backend = compile_strictly(_sgd)
    mine = _make([(4,), (6,)])
    _check(compiled, _sgd, mine, copy.deepcopy(mine))
    executor = _executor(backend)
    given = [torch.randn(slot.shape) for slot in executor.signature.inputs]
    places = [i for i, slot in enumerate(executor.signature.inputs) if slot.shape == (6,)]
    for i in places:
        smaller = [torch.zeros(2) if k == i else t.clone() for k, t in enumerate(given)]
        for _ in range(2):
            with pytest.raises(ExecutionError, match=r"sizes \(2,\).*compiled for \(6,\)"):
                executor.boxed(list(smaller))


def test_threads_step_at_the_same_time() -> None:
    compiled, backend = compile_strictly(_momentum)
    _check(compiled, _momentum, _make(), _make(), calls=1)
    assert _is_addressed(backend)

    def work(seed: int) -> None:
        mine, theirs = _make(seed=seed), _make(seed=seed)
        for _ in range(20):
            _check(compiled, _momentum, mine, theirs, calls=1)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(8)))


def _returning(parameters: Tensors, gradients: Tensors) -> Tensors:
    _sgd(parameters, gradients)
    return [g * 2 for g in gradients]


def _with_products(parameters: Tensors, gradients: Tensors) -> None:
    _sgd(parameters, [g @ g for g in gradients])


def _in_float64(parameters: Tensors, gradients: Tensors) -> None:
    _sgd(parameters, [g.double() for g in gradients])


NOT_ADDRESSED = [_returning, _with_products, _in_float64]


@pytest.mark.parametrize("function", NOT_ADDRESSED)
def test_other_graphs_are_given_tensors(function: Callable[..., Any]) -> None:
    compiled, backend = compile_strictly(function)
    shapes = [(4, 4), (3, 3), (6, 6)]
    _check(compiled, function, _make(shapes), _make(shapes))
    assert not _is_addressed(backend)


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.1),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=0.1, amsgrad=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.1, centered=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.1),
    "Adadelta": lambda p: torch.optim.Adadelta(p, lr=0.1),
}


@pytest.mark.parametrize(
    ("name", "more", "most"),
    [
        *((name, 0, elementwise._MOST) for name in OPTIMIZERS),
        *((name, 12, 40) for name in OPTIMIZERS),
        ("amsgrad", 110, elementwise._MOST),
    ],
)
def test_optimizers_step_by_address(
    name: str, more: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their counters and corrections, too; gradients move. Many are more than a list takes: a
    hundred take long to trace, so that most are parted by a lower limit."""
    monkeypatch.setattr(elementwise, "_MOST", most)
    shapes = [(3, 4), (4,), (1,), (50, 40), *[(2,)] * more]
    mine, theirs = ([torch.nn.Parameter(t) for t in _make(shapes)[0]] for _ in range(2))
    torch._dynamo.reset()
    optimizers = [OPTIMIZERS[name](p) for p in (mine, theirs)]
    compiled, backend = compile_strictly(optimizers[0].step, fullgraph=False)
    for step in range(6):
        for parameters in (mine, theirs):
            for p, g in zip(parameters, _make(shapes, seed=step)[1], strict=True):
                p.grad = g
        compiled()
        optimizers[1].step()
        torch.testing.assert_close([*mine], [*theirs])
    states = [[*itertools.chain(*(s.values() for s in o.state.values()))] for o in optimizers]
    torch.testing.assert_close(*states)
    assert _is_addressed(backend)


def test_a_model_without_the_key_of_the_process_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No file makes this process read, or write, where it says."""
    made: list[ir.Model] = []

    def keep(block: Any) -> Any:
        found = find_addresses(block)
        made.extend([] if found is None else found[:1])
        return found

    monkeypatch.setattr(building, "find_addresses", keep)
    compiled, _ = compile_strictly(_sgd)
    _check(compiled, _sgd, _make(), _make(), calls=1)
    (model,) = made
    create_session(model)
    node = next(iter(model.graph))
    key = node.attributes["key"].as_int()
    for other in (0, 1, key ^ 1):
        node.attributes["key"] = ir.AttrInt64("key", other)
        with pytest.raises(ExecutionError, match="addresses are taken from the process"):
            create_session(model)
