"""Tensors without an element, through the backend: types, shapes and gradients."""

from __future__ import annotations

import pytest
import torch

from tests.backends.ways import compile_strictly


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.bool]
)
def test_an_empty_result_keeps_its_type(dtype: torch.dtype) -> None:
    compiled, _ = compile_strictly(lambda x: x.transpose(0, 2).clone())
    got = compiled(torch.zeros(2, 0, 3, dtype=dtype))
    assert got.dtype is dtype
    assert got.shape == (3, 0, 2)


def test_gradients_of_empty_tensors() -> None:
    """onnxruntime 1.19 ends the process when it is given these nodes."""

    def skew(a: torch.Tensor, d: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        return (a.expand(d.shape) - a.expand(d.shape).transpose(0, 1)) / d * u

    a, d, u = torch.zeros(0, 1), torch.ones(0, 0), torch.ones(1, 0)
    for tensor in (a, d, u):
        tensor.requires_grad_()
    compiled, _ = compile_strictly(skew)
    compiled(a, d, u).sum().backward()
    for tensor in (a, d, u):
        assert tensor.grad is not None
        torch.testing.assert_close(tensor.grad, torch.zeros_like(tensor))


@pytest.mark.parametrize("rows", [0, 3])
def test_sizes_that_become_zero(rows: int) -> None:
    compiled, _ = compile_strictly(lambda x: (x * 2).sum(0), dynamic=True)
    for size in (4, 5, rows):
        x = torch.randn(size, 3)
        torch.testing.assert_close(compiled(x), (x * 2).sum(0))
