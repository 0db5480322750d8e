"""Quotients of whole numbers of symbolic size are floating-point numbers, whatever reads them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from dort_rewriter.capture.tracing import correct_tracing
from dort_rewriter.torch_defects import quotient_types
from tests.backends.ways import compile_strictly

READERS: dict[str, Callable[..., torch.Tensor]] = {
    "itself": lambda q, x: q,
    "a view": lambda q, x: q.t(),
    "expanded": lambda q, x: q.expand_as(x),
    "a sum": lambda q, x: q.sum(),
    "a sum over rows": lambda q, x: q.sum(0),
    "added to whole numbers": lambda q, x: q + x,
    "compared": lambda q, x: q > 0.5,
    "beside others": lambda q, x: torch.cat([q, x]),
    "like it": lambda q, x: torch.full_like(q, 0.5),
    "a mean": lambda q, x: q.double().mean(),
    "in a softmax": lambda q, x: q.softmax(-1),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64])
def test_what_reads_a_quotient(reader: str, dtype: torch.dtype) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        part = x.chunk(2)[1]
        return READERS[reader](part / (part + 1), part)

    compiled, _ = compile_strictly(program, dynamic=True)
    for rows in (4, 6):
        x = torch.arange(rows * 3).reshape(rows, 3).to(dtype)
        got, expected = compiled(x), program(x)
        torch.testing.assert_close(got, expected)
        assert got._is_view() == expected._is_view()


def test_gradients_beside_a_quotient() -> None:
    compiled, _ = compile_strictly(lambda w, x: w * (x / (x + 1)).expand_as(x), dynamic=True)
    w, x = torch.randn(4, 3, requires_grad=True), torch.arange(12).reshape(4, 3)
    compiled(w, x).sum().backward()
    torch.testing.assert_close(w.grad, x / (x + 1))


def test_nothing_is_left_of_the_correction() -> None:
    kernels = quotient_types._kernels()
    before = dict(kernels)
    with correct_tracing():
        pass
    assert kernels == before
