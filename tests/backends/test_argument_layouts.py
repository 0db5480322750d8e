"""Operators of torch whose results, or saved values, depend on the strides of their arguments.

``linalg.det`` factors a matrix or its transpose, whichever is contiguous: its gradient is traced
for one of the two.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from dort_rewriter import OrtBackend

Tensor = torch.Tensor


def with_gaps(x: Tensor) -> Tensor:
    return x.new_zeros(*x.shape[:-1], 2 * x.shape[-1])[..., ::2].copy_(x)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "row-major": lambda x: x.clone(),
    "column-major": lambda x: x.mT.contiguous().mT,
    "reversed": lambda x: x.permute(2, 1, 0).contiguous().permute(2, 1, 0),
    "gaps": with_gaps,
    "column-major with gaps": lambda x: with_gaps(x.mT).mT,
    "expanded": lambda x: x[:1].expand(3, -1, -1),
}


def determinants(x: Tensor) -> tuple[Tensor, ...]:
    return (torch.linalg.det(x),)


def computed(x: Tensor) -> tuple[Tensor, ...]:
    """What is computed has the layout of what it is computed from."""
    return torch.linalg.slogdet(x * 2 + 1)


def logarithms(x: Tensor) -> tuple[Tensor, ...]:
    return (torch.logdet(x @ x.mT + x.mT @ x),)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("function", [determinants, computed, logarithms])
def test_gradients_of_determinants(
    function: Callable[[Tensor], tuple[Tensor, ...]], layout: str
) -> None:
    """Of matrices of known and of any size, each in a graph of its own."""
    for dynamic in (False, True):
        torch._dynamo.reset()
        compiled = torch.compile(function, backend=OrtBackend(), dynamic=dynamic)
        for size in (4, 5) if dynamic else (4,):
            torch.manual_seed(size)
            x = torch.randn(3, size, size) + size * torch.eye(size)
            wanted, got = (LAYOUTS[layout](x).requires_grad_() for _ in range(2))
            expected, results = function(wanted), compiled(got)
            torch.testing.assert_close(results, expected)
            (grad,) = torch.autograd.grad(expected[-1].sum(), wanted)
            (ours,) = torch.autograd.grad(results[-1].sum(), got)
            torch.testing.assert_close(ours, grad)
            assert ours.stride() == grad.stride()
