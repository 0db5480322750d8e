"""What draws random numbers that nobody reads moves the generator, as in eager mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from dort_rewriter import OrtBackend
from dort_rewriter.torch_defects.unused_random import return_unused_random
from tests.dynamo_graphs import graph_of_dynamo

Tensor = torch.Tensor

UNREAD: dict[str, Callable[[Tensor], Any]] = {
    "dropout": lambda x: F.dropout(x, 0.5),
    "dropout of what is computed": lambda x: F.dropout(x * 2, 0.5) + 1,
    "rand_like": torch.rand_like,
    "randn": lambda x: torch.randn(4),
    "randint_like": lambda x: torch.randint_like(x, 5),
    "randperm": lambda x: torch.randperm(5),
    "bernoulli": lambda x: torch.bernoulli(x.sigmoid()),
    "uniform_": lambda x: torch.empty_like(x).uniform_(),
    "uniform_ of a view": lambda x: (x * 1)[1:].uniform_(),
    "normal_, and more": lambda x: torch.empty_like(x).normal_().mul_(2).add_(1),
    "exponential_": lambda x: torch.empty_like(x).exponential_(),
    "multinomial": lambda x: torch.multinomial(x.abs() + 1, 2),
    "gumbel_softmax": F.gumbel_softmax,
    "rrelu": lambda x: F.rrelu(x, training=True),
    "two": lambda x: (torch.rand_like(x), F.dropout(x, 0.3)),
}


def drawing(unread: Callable[[Tensor], Any], x: Tensor) -> tuple[Tensor, Tensor]:
    before = torch.rand(3)
    unread(x)
    return torch.rand(3) + before, x * 2


def drawn(function: Callable[..., Any], *args: Any) -> Any:
    torch.manual_seed(0)
    return *function(*args), torch.rand(2)


@pytest.mark.parametrize("grad", [False, True], ids=["no_grad", "grad"])
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", UNREAD)
def test_what_is_drawn_later(name: str, dynamic: bool, grad: bool) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(drawing, backend=OrtBackend(), dynamic=dynamic)
    for size in (3, 5) if dynamic else (3,):
        x = torch.linspace(-1, 1, size * 4).view(size, 4).requires_grad_(grad)
        wanted, got = drawn(drawing, UNREAD[name], x), drawn(compiled, UNREAD[name], x)
        for ours, eagers in zip(got, wanted, strict=True):
            assert torch.equal(ours, eagers)
        if grad:
            slopes = [torch.autograd.grad(r[1].sum(), x)[0] for r in (got, wanted)]
            assert torch.equal(*slopes)


def test_modules_whose_results_are_not_read() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
            self.drop = nn.Dropout(0.5)

        def forward(self, x: Tensor) -> Tensor:
            self.drop(self.first(x))
            return self.drop(self.second(x))

    model, x = Model(), torch.randn(3, 4)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend=OrtBackend())
    grads = []
    for call in (model, compiled):
        model.zero_grad()
        torch.manual_seed(1)
        call(x).sum().backward()
        assert model.first.weight.grad is None
        grads.append(model.second.weight.grad)
    torch.testing.assert_close(*grads)


def test_draws_inside_of_a_transform_are_left_to_torch() -> None:
    """No graph returns what is of one row of a batch."""

    def function(x: Tensor) -> Tensor:
        torch.rand_like(x)

        def of_row(row: Tensor) -> Tensor:
            torch.rand_like(row)
            return row * 2

        return torch.func.vmap(of_row, randomness="different")(x)

    torch._dynamo.reset()
    x = torch.randn(3, 4)
    assert torch.equal(torch.compile(function, backend=OrtBackend())(x), x * 2)


READ: dict[str, Callable[[Tensor], Any]] = {
    "nothing is drawn": lambda x: (x.sin(), x * 2),
    "all is returned": lambda x: (F.dropout(x, 0.5), torch.rand(3)),
    "written to an argument": lambda x: (x.uniform_(), x[1:].bernoulli_(0.5))[0],
    "written to what is returned": lambda x: ((y := x * 1), y[0].normal_())[0],
    "added to what is returned": lambda x: ((y := x * 1), y.add_(torch.rand_like(y)))[0],
}


@pytest.mark.parametrize("name", READ)
def test_a_graph_that_reads_what_it_draws_stays(name: str) -> None:
    graph_module = graph_of_dynamo(READ[name], torch.ones(3, 4))
    assert return_unused_random(graph_module) == (graph_module, 0)


def test_the_graph_itself_stays_as_it_is() -> None:
    graph_module = graph_of_dynamo(lambda x: (torch.rand(3), x + 1)[1], torch.ones(3, 4))
    before = str(graph_module.graph)
    extended, count = return_unused_random(graph_module)
    assert (count, str(graph_module.graph)) == (1, before)
    assert len(graph_module(torch.ones(3, 4))) + 1 == len(extended(torch.ones(3, 4)))
