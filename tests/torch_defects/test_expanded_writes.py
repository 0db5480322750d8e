"""Writes through expanded views are exact, and expansions that repeat are what they were."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from dort_rewriter import OrtBackend

Tensor = torch.Tensor

WRITES: dict[str, Callable[[Tensor], Any]] = {
    "expand_as": lambda x: x.expand_as(x).fill_(1e-3),
    "a new dimension": lambda x: x.expand(1, -1, -1).mul_(1e-8),
    "broadcast_to": lambda x: x.broadcast_to(1, 1, *x.shape).add_(0.25),
    "broadcast_tensors": lambda x: torch.broadcast_tensors(x, x[0])[0].mul_(1e-8),
    "one element": lambda x: x.expand(1, *x.shape)[0, 0, 0].copy_(x.new_tensor(7e-4)),
    "of a part": lambda x: x[1].expand(1, x.shape[1]).mul_(1e-8),
    "a part of what is repeated": lambda x: x.expand(2, *x.shape)[0].mul_(1e-8),
    "a part that is set": lambda x: x.expand(2, *x.shape).select(0, 1)[0].fill_(7e-4),
    "turned": lambda x: x.t().expand(1, -1, -1).mul_(1e-8),
}


def given() -> Tensor:
    return torch.tensor([[1e8, math.inf, 3.0], [-2e7, 5.0, -math.inf]])


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", WRITES)
def test_what_is_written_is_exact(name: str, dynamic: bool) -> None:
    write = WRITES[name]

    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 1
        write(y)
        write(x)
        return y, x + 1

    torch._dynamo.reset()
    compiled = torch.compile(program, backend=OrtBackend(), dynamic=dynamic)
    found = []
    for run in (compiled, program):
        x = given()
        found.append([*run(x), x])
    torch.testing.assert_close(found[0], found[1], rtol=1e-6, atol=0)


def test_expansions_and_their_gradients() -> None:
    def program(x: Tensor) -> list[Tensor]:
        return [x.expand_as(x), x.expand(1, 2, 3) * 2, x.expand(4, 2, 3).sin(), x[:1].expand(2, 3)]

    torch._dynamo.reset()
    compiled = torch.compile(program, backend=OrtBackend())
    found: list[Any] = []
    for run in (compiled, program):
        x = torch.arange(6.0).view(2, 3).requires_grad_()
        results = run(x)
        sum(r.sum() for r in results).backward()
        layouts = [(r.shape, r.stride(), r._is_view()) for r in results]
        shared = [r.data_ptr() == x.data_ptr() for r in results]
        found.append((results, x.grad, layouts, shared))
    (ours, grad, *facts), (eager, expected, *wanted) = found
    torch.testing.assert_close([*ours, grad], [*eager, expected])
    assert facts == wanted


@pytest.mark.parametrize("factor", [None, 2])
def test_gradients_are_sums_that_begin_with_zero(factor: int | None) -> None:
    """Also where there is nothing to add: -0.0 is 0.0 then."""

    def program(x: Tensor) -> Tensor:
        view = x.expand(1, 2, 3)
        return view if factor is None else view * factor

    torch._dynamo.reset()
    x = torch.ones(2, 3, requires_grad=True)
    for run in (program, torch.compile(program, backend=OrtBackend())):
        (gradient,) = torch.autograd.grad(run(x), x, torch.full((1, 2, 3), -0.0))
        assert not gradient.signbit().any()
