"""Writes in place to arguments that are one number of float64, which torch takes for a number of
Python; and numbers of Python beside them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

from dort_rewriter import OrtBackend

Tensor = torch.Tensor


def _written(write: Callable[[Tensor], Any]) -> Callable[[Tensor], Tensor]:
    def program(a: Tensor) -> Tensor:
        write(a)
        return a + 1

    return program


WRITES: dict[str, Callable[[Tensor], Any]] = {
    "add_": lambda a: a.add_(1),
    "fill_": lambda a: a.fill_(3.0),
    "copy_": lambda a: a.copy_(torch.tensor(4.0)),
    "zero_": lambda a: a.zero_(),
    "normal_": lambda a: a.normal_(),
    "bernoulli_": lambda a: a.bernoulli_(0.5),
    "out": lambda a: torch.add(a, 1, out=a),
    "a view": lambda a: a[None].mul_(3),
    "read before": lambda a: (a.exp(), a.sub_(2)),
}


def scalar(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


def check(program: Callable[..., Any], compiled: Callable[..., Any], *args: Any) -> None:
    """Results, what was written and what is drawn afterwards."""
    found = []
    for run in (program, compiled):
        given = [a.detach().clone() if isinstance(a, Tensor) else a for a in args]
        torch.manual_seed(3)
        found.append(tree_leaves((run(*given), given, torch.rand(2))))
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("name", WRITES)
def test_a_write_that_nobody_reads_is_kept(name: str) -> None:
    program = _written(WRITES[name])
    torch._dynamo.reset()
    compiled = torch.compile(program, backend=OrtBackend())
    for value in (1.5, 2.5):
        check(program, compiled, scalar(value))


def test_a_write_behind_another_graph_with_such_an_argument() -> None:
    """torch keeps the names of what it could not compute with, for all graphs to come."""
    torch._dynamo.reset()
    check(torch.neg, torch.compile(lambda a: -a, backend=OrtBackend()), scalar(1.5))
    program = _written(WRITES["add_"])
    check(program, torch.compile(program, backend=OrtBackend()), scalar(1.5))


NUMBERS: dict[str, Callable[..., Any]] = {
    "computed with": lambda x, s, a: (a.add_(1), x * s + a)[1],
    "a limit": lambda x, s, a: (a.add_(1), x.clamp(min=s) + a)[1],
    "a size": lambda x, s, a: (a.add_(1), x.split(int(s)), x + a)[1:],
    "compared": lambda x, s, a: (a.add_(1), x + a if s > 2.7 else x - a)[1],
    "unread": lambda x, s, a: (a.add_(1), x + a)[1],
}


@pytest.mark.parametrize("name", NUMBERS)
def test_beside_numbers_of_python(name: str) -> None:
    program = NUMBERS[name]
    torch._dynamo.reset()
    compiled = torch.compile(program, backend=OrtBackend())
    for number in (2.5, 3.5, 1.5, 2.5):
        check(program, compiled, torch.arange(12.0).view(4, 3), number, scalar(1.5))


def test_a_gradient_beside_a_write() -> None:
    def program(r: Tensor, a: Tensor) -> Tensor:
        a.add_(1)
        return (r * a).sin()

    torch._dynamo.reset()
    gradients = []
    for run in (program, torch.compile(program, backend=OrtBackend())):
        r, a = scalar(2.0).requires_grad_(), scalar(1.0)
        run(r, a).backward()
        assert a.item() == 2
        gradients.append(r.grad)
    torch.testing.assert_close(*gradients)


def test_buffers_that_count() -> None:
    class Counting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", scalar(0.0))
            self.register_buffer("mean", scalar(0.0))

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            self.mean.mul_(0.9).add_(x.double().sum())
            return x / self.calls

    torch._dynamo.reset()
    model, other = Counting(), Counting()
    compiled = torch.compile(other, backend=OrtBackend())
    for _ in range(3):
        x = torch.rand(2, 3)
        torch.testing.assert_close(compiled(x), model(x))
        torch.testing.assert_close(dict(other.named_buffers()), dict(model.named_buffers()))
