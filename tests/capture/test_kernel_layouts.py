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


def test_places_in_what_kernels_lay_out_otherwise() -> None:
    """``as_strided`` reads them as the kernel writes them, not as torch traces it."""
    x = torch.randn(2, 3, 4, dtype=torch.float64).transpose(1, 2)
    for program in (
        lambda x: (3 ** x.clamp(-3, 3)).as_strided((2,), (1,)),
        lambda x: (3 ** (x + 1)).as_strided((2, 3), (3, 1), 4) * 2,
        lambda x: torch.nn.functional.logsigmoid(x).as_strided((5,), (2,)),
        lambda x: x.floor_divide(2.5).abs().as_strided((5,), (2,)),
        lambda x: torch.logaddexp(x, x[:1]).as_strided((5,), (2,)),
    ):
        for dynamic in (False, True):
            torch._dynamo.reset()
            compiled = torch.compile(program, backend=OrtBackend(), dynamic=dynamic)
            torch.testing.assert_close(compiled(x), program(x))
