"""The order in memory of results, and what is drawn behind them, are those of eager mode."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

from dort_rewriter import OrtBackend

pytestmark = pytest.mark.filterwarnings("ignore:index_reduce.. is in beta")

I = torch.tensor([0, 2])  # noqa: E741
ROWS, MASK = torch.rand(2, 3), torch.rand(4, 3) > 0.5
WHERE, FULL = MASK.long(), torch.rand(4, 3)

WRITES: dict[str, Callable[[torch.Tensor], object]] = {
    "addmm_": lambda v: v.addmm_(torch.ones(4, 5), torch.ones(5, 3)),
    "bernoulli_": lambda v: v.bernoulli_(0.5),
    "bernoulli_ of probabilities": lambda v: v.bernoulli_(FULL),
    "cumprod_": lambda v: v.cumprod_(0),
    "cumsum_": lambda v: v.cumsum_(dim=1),
    "index_add_": lambda v: v.index_add_(0, I, ROWS, alpha=2),
    "index_copy_": lambda v: v.index_copy_(0, I, ROWS),
    "index_reduce_": lambda v: v.index_reduce_(0, I, ROWS, "prod"),
    "masked_fill_": lambda v: v.masked_fill_(MASK, 1.0),
    "masked_scatter_": lambda v: v.masked_scatter_(MASK, FULL),
    "mvlgamma_": lambda v: v.add_(3).mvlgamma_(2),
    "renorm_": lambda v: v.renorm_(2, 0, 0.5),
    "scatter_": lambda v: v.scatter_(0, WHERE, 1.0),
    "scatter_add_": lambda v: v.scatter_add_(0, WHERE, FULL),
    "scatter_reduce_": lambda v: v.scatter_reduce_(0, WHERE, FULL, "sum"),
    "tril_": lambda v: v.tril_(),
    "triu_": lambda v: v.triu_(1),
    "by an operator that keeps it": lambda v: v.mul_(FULL),
    "of others": lambda v: v.index_put_((I,), ROWS),
}


def assert_same(
    function: Callable[[torch.Tensor], object], x: torch.Tensor, dynamic: bool | None = None
) -> None:
    """Values, strides, and what is drawn behind them, for an argument of its own each time."""
    results = []
    compiled = torch.compile(function, backend=OrtBackend({"fallback": False}), dynamic=dynamic)
    for called in (compiled, function):
        torch.manual_seed(0)
        given = torch.empty_strided(x.shape, x.stride()).copy_(x)
        results.append([given, *called(given)])  # type: ignore[misc]
    for got, expected in zip(*results, strict=True):
        assert got.stride() == expected.stride()
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", WRITES)
def test_new_memory(name: str, dynamic: bool) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        v = torch.empty_like(x).copy_(x)
        WRITES[name](v)
        return v, torch.rand_like(v)

    assert_same(function, torch.rand(3, 4).t(), dynamic)


@pytest.mark.parametrize("name", WRITES)
def test_a_view(name: str) -> None:
    """What is written is seen in the base too."""

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        base = x * 2
        v = base.t()
        WRITES[name](v)
        return base, v, torch.rand_like(v)

    assert_same(function, torch.rand(3, 4))


@pytest.mark.parametrize("name", WRITES)
def test_an_argument(name: str) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        WRITES[name](x)
        return (torch.rand_like(x),)

    assert_same(function, torch.rand(3, 4).t())


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("inplace", [False, True])
def test_rrelu(training: bool, inplace: bool) -> None:
    """It is contiguous, unless it is in place."""

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = functional.rrelu(x - 0.5, training=training, inplace=inplace)
        return y, functional.alpha_dropout(y, 0.4, training=True)

    assert_same(function, torch.rand(3, 4).t())


def test_integers() -> None:
    """Their sums are wider where nothing is written."""

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        v = x.to(torch.int8).t()
        return (v.cumsum_(0).masked_fill_(v > 2, 1),)

    assert_same(function, torch.arange(12.0).reshape(3, 4))


@pytest.mark.parametrize("name", ["index_add_", "masked_fill_", "tril_", "addmm_", "cumsum_"])
def test_gradients(name: str) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        v = (x * 2).t()
        WRITES[name](v)
        return v * v

    x = torch.rand(3, 4, requires_grad=True)
    compiled = torch.compile(function, backend=OrtBackend({"fallback": False}))
    (got,) = torch.autograd.grad(compiled(x).sum(), x)
    (expected,) = torch.autograd.grad(function(x).sum(), x)
    torch.testing.assert_close(got, expected)
