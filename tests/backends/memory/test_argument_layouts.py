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


def _logarithms(x: Tensor) -> Tensor:
    return torch.nn.functional.logsigmoid(x)


def _norm(x: Tensor) -> Tensor:
    return torch.nn.functional.batch_norm(x, None, None, training=True) + torch.eye(len(x))


def _sum(x: Tensor) -> Tensor:
    return torch.logaddexp(x.new_zeros(len(x), 1), x)


def _solved(x: Tensor) -> Tensor:
    return torch.linalg.solve(x, torch.ones(len(x), 2))


def _viewed(x: Tensor) -> Tensor:
    return torch.linalg.slogdet(x.mT[None])[1]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("layout", ["row-major", "column-major"])
@pytest.mark.parametrize("reader", [torch.linalg.det, _viewed, _solved])
@pytest.mark.parametrize("made", [_logarithms, _norm, _sum])
def test_gradients_of_matrices_that_kernels_lay_out_otherwise(
    made: Callable[[Tensor], Tensor],
    reader: Callable[[Tensor], Tensor],
    layout: str,
    dynamic: bool,
) -> None:
    """torch decides while it traces whether a gradient reads factors of the transpose."""

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        y = made(x)
        return y * 2, reader(y)

    torch.manual_seed(0)
    x = torch.randn(4, 4)
    wanted, got = (LAYOUTS[layout](x).requires_grad_() for _ in range(2))
    expected = function(wanted)
    results = torch.compile(function, backend=OrtBackend(), dynamic=dynamic)(got)
    torch.testing.assert_close(results, expected)
    (grad,) = torch.autograd.grad(expected[1].sum(), wanted)
    (ours,) = torch.autograd.grad(results[1].sum(), got)
    torch.testing.assert_close(ours, grad, rtol=1e-4, atol=1e-4)
    assert [r.stride() for r in results] == [e.stride() for e in expected]


def _normalized(x: Tensor) -> tuple[Tensor, ...]:
    ones = torch.ones(x.shape[1])
    return (torch.nn.functional.batch_norm(x, ones, ones, training=True),)


def _gated(x: Tensor) -> tuple[Tensor, ...]:
    return (torch.nn.functional.glu(x),)


def _reflected(x: Tensor) -> tuple[Tensor, ...]:
    return (torch.nn.functional.pad(x, (1, 1, 1, 1), "reflect"),)


def _repeated(x: Tensor) -> tuple[Tensor, ...]:
    return (torch.nn.functional.pad(x, (-1, 2, 1, 0), "replicate"),)


def _updated(x: Tensor) -> tuple[Tensor, ...]:
    w = torch.ones(x.shape[1])
    return torch.ops.aten._batch_norm_with_update(x, w, w, w * 1, w * 1, 0.1, 1e-5)[:1]


def _places(x: Tensor) -> tuple[Tensor, ...]:
    places = torch.arange(x[0, 0].numel()).view(1, 1, *x.shape[2:]).expand(x.shape).contiguous()
    return (torch.ops.aten.max_unpool2d(x, places, [6, 6]),)


CHANNELS_LAST = torch.empty(2, 4, 4, 6).contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("function", "like"),
    [
        (_normalized, CHANNELS_LAST),
        (_gated, CHANNELS_LAST),
        (_normalized, torch.empty(3, 4, 6).mT.contiguous().mT),
        (_reflected, CHANNELS_LAST),
        (_repeated, CHANNELS_LAST),
        (_updated, torch.empty(3, 4, 6).mT.contiguous().mT),
        (_places, CHANNELS_LAST),
    ],
)
def test_strides_of_kernels(
    function: Callable[[Tensor], tuple[Tensor, ...]], like: Tensor
) -> None:
    """Of results and gradients that fake tensors have otherwise."""
    torch._dynamo.reset()
    compiled = torch.compile(function, backend=OrtBackend())
    found = []
    for called in (function, compiled):
        torch.manual_seed(0)
        x = torch.empty_strided(like.shape, like.stride()).normal_().requires_grad_()
        results = called(x)
        (grad,) = torch.autograd.grad(sum((r * r).sum() for r in results), x)
        found.append([*results, grad])
    for expected, got in zip(*found, strict=True):
        torch.testing.assert_close(got, expected)
        assert got.stride() == expected.stride()


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_shuffled_channels_are_a_copy(groups: int) -> None:
    for x in (torch.randn(2, 4, 3, 3), torch.randn(CHANNELS_LAST.shape).permute(0, 3, 1, 2)):
        torch._dynamo.reset()
        compiled = torch.compile(
            lambda x: torch.nn.functional.channel_shuffle(x[:, :4], groups), backend=OrtBackend()
        )
        expected = torch.nn.functional.channel_shuffle(x[:, :4], groups)
        got = compiled(x)
        assert torch.equal(got, expected)
        assert (got.stride(), got._is_view()) == (expected.stride(), expected._is_view())
        assert got.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()


def test_a_group_norm_that_torch_refuses_is_refused() -> None:
    """The kernel takes what is row-major, or channels-last, until 2.15."""

    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.native_group_norm(x, None, None, 2, 4, 9, 2, 1e-5)

    compiled = torch.compile(program, backend=OrtBackend())
    x = torch.randn(2, 4, 9).mT.contiguous().mT
    try:
        expected = program(x)
    except RuntimeError:
        with pytest.raises(RuntimeError, match="is_contiguous"):
            compiled(x)
    else:
        for got, result in zip(compiled(x), expected, strict=True):
            torch.testing.assert_close(got, result)
            assert got.stride() == result.stride()
