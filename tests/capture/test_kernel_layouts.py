"""Kernels are asked how their results lie."""

from __future__ import annotations

import torch

from dort_rewriter import OrtBackend

seen: list[tuple[int, ...]] = []


@torch.library.custom_op("dort_tests::noted", mutates_args=(), tags=(torch.Tag.pointwise,))
def noted(x: torch.Tensor) -> torch.Tensor:
    seen.append(tuple(x.shape))
    return x.contiguous() + 1


@noted.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty(x.shape)


def test_an_operator_of_a_user_is_not_called_while_a_graph_is_compiled() -> None:
    torch._dynamo.reset()
    seen.clear()
    x = torch.randn(5, 7)
    got = torch.compile(lambda x: noted(x.t()), backend=OrtBackend())(x)
    assert torch.equal(got, x.t() + 1)
    assert got.is_contiguous()
    assert seen == [(7, 5)]
