"""Gradients of results whose elements are one in memory: each has its own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from dort_rewriter import OrtBackend

Tensor = torch.Tensor

OVERLAPPING: dict[str, Callable[[Tensor], Tensor]] = {
    "unfold": lambda x: (x * 0.5).unfold(0, 2, 1),
    "unfold of an argument": lambda x: x.unfold(1, 2, 1),
    "unfold twice": lambda x: (x * 0.5).unfold(0, 3, 1).unfold(1, 2, 1),
    "windows of a step": lambda x: x.sin().unfold(0, 3, 2).transpose(0, 1),
    "expand": lambda x: (x * 2).expand(2, *x.shape),
    "expand of unfold": lambda x: (x * 2).unfold(0, 2, 1).expand(2, -1, -1, -1),
    "as_strided": lambda x: (x * 2).as_strided((3, 3), (2, 1)),
    "apart": lambda x: (x * 2).unfold(0, 2, 2),
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", OVERLAPPING)
def test_gradients_of_overlapping_results(name: str, dynamic: bool) -> None:
    function = OVERLAPPING[name]
    torch._dynamo.reset()
    compiled = torch.compile(function, backend=OrtBackend(), dynamic=dynamic)
    for size in (4, 6) if dynamic else (4,):
        grads = []
        for call in (function, compiled):
            x = torch.arange(size * 3.0).view(size, 3).requires_grad_()
            result = call(x)
            weights = torch.arange(1.0, result.numel() + 1).view(result.shape)
            grads += torch.autograd.grad((result * weights).sum(), x)
        torch.testing.assert_close(*grads)
