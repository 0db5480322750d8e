"""What is written through a view of it is no view itself, and is the base of its views."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from dort_rewriter import OrtBackend

Tensor = torch.Tensor

WRITES: tuple[Callable[[Tensor], Any], ...] = (
    lambda y: y.expand_as(y).add_(1),
    lambda y: y.expand(1, *y.shape).mul_(2),
    lambda y: y.broadcast_to(y.shape).zero_(),
    lambda y: y.expand_as(y)[0].fill_(7),
    lambda y: y.expand_as(y).expand_as(y).copy_(y * 3),
    lambda y: y.view(-1).sub_(1),
    lambda y: y.view(y.shape).neg_(),
    lambda y: y.t().div_(2),
    lambda y: y.unsqueeze(0).exp_(),
    lambda y: y.as_strided(y.shape, y.stride()).clamp_(0, 2),
    lambda y: y.flatten().relu_(),
    lambda y: y.movedim(0, 1).sin_(),
)


def write_all(x: Tensor) -> list[Tensor]:
    """Each result is written through a view; every other one is returned with a view of it."""
    results = []
    for i, write in enumerate(WRITES):
        y = x * (i + 1)
        write(y)
        results += [y.t(), y, y[0]] if i % 2 else [y]
    return [*results, (x * 2).detach(), (x + 1).t(), x * 3]


def facts(results: list[Tensor]) -> list[Any]:
    bases = [next((i for i, r in enumerate(results) if r is t._base), None) for t in results]
    return [
        (t._is_view(), base, t.stride(), t.requires_grad, t.storage_offset())
        for t, base in zip(results, bases, strict=True)
    ]


@pytest.mark.parametrize("gradient", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_what_is_written_is_no_view(dynamic: bool, gradient: bool) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(write_all, backend=OrtBackend(), dynamic=dynamic)
    for size in (3, 5) if dynamic else (3,):
        found = []
        for run in (compiled, write_all):
            x = torch.linspace(-1, 1, 4 * size).view(4, size).requires_grad_(gradient)
            results = run(x)
            about = facts(results)
            if gradient:
                sum(r.sum() for r in results if r.requires_grad).backward()
            found.append((about, results, x.grad))
        (ours, values, grad), (eager, expected, wanted) = found
        if gradient:  # AOTAutograd returns what is a view of nothing else returned as no view
            ours, eager = ours[:-2] + ours[-1:], eager[:-2] + eager[-1:]
        assert ours == eager
        torch.testing.assert_close([values, grad], [expected, wanted])


def test_beside_a_check() -> None:
    """Whose token is the first result of the graph."""

    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        y = (x * 2)[None]
        return y, torch.linalg.solve(y + 4 * torch.eye(3), y)

    torch._dynamo.reset()
    x = torch.rand(3, 3)
    assert torch.compile(program, backend=OrtBackend())(x)[0]._is_view()
