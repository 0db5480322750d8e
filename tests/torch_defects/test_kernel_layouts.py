"""Kernels are asked how their results lie."""

from __future__ import annotations

from collections.abc import Callable

import pytest
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


SEEN_THROUGH_VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "in places": lambda x: (
        x.masked_scatter(x > 0, x.flip(0)).floor_divide(x.abs() + 1).as_strided((2,), (1,))
    ),
    "in a part": lambda x: (3 ** x.clamp(-3, 3)).transpose(0, 1)[1:],
    "expanded": lambda x: torch.nn.functional.logsigmoid(x).expand(2, *x.shape),
    "in what is made of a view": lambda x: torch.exp(torch.logaddexp(x, x[:1]).mT),
    "in an outer product": lambda x: (2**x).unsqueeze(-1) * (2**x).unsqueeze(-2),
    "in a copy": lambda x: (3 ** x.clamp(-3, 3)).mT.to(torch.float16),
    "in what is written to": lambda x: (3**x).transpose(0, 1).select_scatter(x[:, 0], 0, 0),
    "in what is turned over": lambda x: (3 ** x.clamp(-3, 3)).flip(0),
    "in what is sorted": lambda x: torch.sort(3 ** x.clamp(-3, 3), 1)[0],
    "in what is put into": lambda x: (2**x).index_put((torch.tensor([0]),), x[0]),
    "in slopes": lambda x: torch.nn.functional.prelu(2**x, x[0, 0, :1]),
    "in what is filled": lambda x: torch.ones_like(2**x).mT,
    "uniform": lambda x: torch.empty_like(x).uniform_().mT * 0,
    "poisson": lambda x: torch.poisson(x.abs() * 0).to(torch.float16),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", SEEN_THROUGH_VIEWS)
def test_strides_are_seen_through_views_and_copies(name: str, dynamic: bool) -> None:
    """What shows a result, or lies as it does, follows what its kernel does."""
    program = SEEN_THROUGH_VIEWS[name]
    x = torch.randn(2, 3, 4, dtype=torch.float64).transpose(1, 2)
    torch._dynamo.reset()
    got, expected = torch.compile(program, backend=OrtBackend(), dynamic=dynamic)(x), program(x)
    torch.testing.assert_close(got, expected)
    assert got.stride() == expected.stride()
    assert got._is_view() == expected._is_view()


OF_PARTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "filled": lambda x: x.index_fill(0, torch.tensor([0]), 2),
    "filled with a tensor": lambda x: x.index_fill(1, torch.tensor([1]), torch.tensor(2.0)),
    "drawn": lambda x: torch.rand_like(x.index_fill(0, torch.tensor([0]), 2)),
    "computed": lambda x: x.index_fill(0, torch.tensor([0]), 2) * 2,
    "of one": lambda x: x[None, :1].index_fill(1, torch.tensor([0]), 2),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", OF_PARTS)
def test_strides_of_what_has_gaps(name: str, dynamic: bool) -> None:
    """Its order is kept, not its gaps."""
    program = OF_PARTS[name]
    x = torch.randn(3, 4, dtype=torch.float64).t()[::2]
    torch._dynamo.reset()
    results = []
    for run in (program, torch.compile(program, backend=OrtBackend(), dynamic=dynamic)):
        torch.manual_seed(3)
        results.append(run(x))
    torch.testing.assert_close(results[1], results[0])
    assert results[1].stride() == results[0].stride()


PADDED = {
    "padded": lambda x: torch.nn.functional.pad(x, (1, 2)),
    "put side by side": lambda x: torch.cat([x, x], -1),
    "the largest": lambda x: torch.nn.functional.max_pool2d(x, 1),
    "means": lambda x: torch.nn.functional.avg_pool2d(x, 1),
    "means of parts": lambda x: torch.nn.functional.adaptive_avg_pool2d(x, (2, 1)),
    "largest of parts": lambda x: torch.nn.functional.adaptive_max_pool2d(x, (2, 1)),
}


@pytest.mark.parametrize("name", PADDED)
def test_a_dimension_of_one_is_no_format(name: str) -> None:
    """torch 2.8's fake tensors take rows that are transposed for images with channels last."""
    program = PADDED[name]
    x = torch.randn(2, 3, 4).transpose(1, 2).unsqueeze(-1)
    torch._dynamo.reset()
    got, expected = torch.compile(program, backend=OrtBackend())(x), program(x)
    torch.testing.assert_close(got, expected)
    assert got.stride() == expected.stride()


OF_ONE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "computed": lambda x: x + 1,
    "computed of two": lambda x: x + x,
    "computed twice": lambda x: (x + 1).relu(),
    "compared": lambda x: x > 0.5,
    "filled": lambda x: torch.full_like(x, 2),
    "turned over": lambda x: x.flip(0),
    "seen otherwise": lambda x: (x * 2).transpose(0, -1).unsqueeze(1),
    "copied": lambda x: (x + 1).to(torch.float64),
    "a part written to": lambda x: (x + 1).select_scatter(x[0], 0, 0),
    "written to": lambda x: x.clone().fill_(True),
    "means of what is written to": lambda x: torch.nn.functional.adaptive_avg_pool1d(
        x.clone().fill_(True).reshape(1, -1, 1), 2
    ),
    "means": lambda x: torch.nn.functional.adaptive_avg_pool1d((x + 1).reshape(1, -1, 1), 2),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", OF_ONE)
def test_strides_of_dimensions_of_one(name: str, dynamic: bool) -> None:
    """Kernels of torch keep them, or do not; and take what has them for another format."""
    program = OF_ONE[name]
    for x in (torch.rand(1, 3).t(), torch.rand(2, 1, 3).mT, torch.rand(1, 4, 3).transpose(0, 1)):
        torch._dynamo.reset()
        compiled = torch.compile(program, backend=OrtBackend(), dynamic=dynamic)
        got, expected = compiled(x), program(x)
        torch.testing.assert_close(got, expected)
        assert got.stride() == expected.stride()


def test_what_was_traced_as_a_view_and_is_copied_has_the_numbers_of_eager_mode() -> None:
    x = torch.randn(4, 3, dtype=torch.float64).t()
    for program in (lambda x: (3**x).reshape(-1), lambda x: (3**x).t().reshape(-1) + 1):
        torch._dynamo.reset()
        got = torch.compile(program, backend=OrtBackend())(x)
        torch.testing.assert_close(got, program(x))


TRACED_AS_ROWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "floor_divide": lambda x: x.floor_divide(x[0, 0, 0].exp()),
    "div": lambda x: torch.div(x, x[0, 0, 0].exp(), rounding_mode="trunc"),
    "copysign": lambda x: torch.copysign(x, x.sum()),
    "nan_to_num, with torch 2.8": torch.nan_to_num,
}
COPIED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "whole": lambda v: v.flatten(),
    "a view of it": lambda v: v.reshape(-1)[3:].unsqueeze(0),
    "of a part": lambda v: v[1:].flatten(0, 1),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("copied", COPIED)
@pytest.mark.parametrize("name", TRACED_AS_ROWS)
def test_what_was_traced_as_a_view_and_is_copied(name: str, copied: str, dynamic: bool) -> None:
    """Kernels write what is transposed as it lies, traced are rows, of which these are views."""

    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        whole = TRACED_AS_ROWS[name](x)
        return whole, COPIED[copied](whole)

    x = torch.randn(2, 3, 4).mT
    torch._dynamo.reset()
    got = torch.compile(program, backend=OrtBackend(), dynamic=dynamic)(x)
    expected = program(x)
    for results in (got, expected):
        results[1].fill_(5)
    for ours, eagers in zip(got, expected, strict=True):
        torch.testing.assert_close(ours, eagers)
        assert ours.stride() == eagers.stride()


def test_views_that_autograd_makes_anew_are_those_that_were_traced() -> None:
    """It has their places, which those of a copy are not."""
    x = torch.randn(2, 3, 4).mT.requires_grad_()

    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        whole = torch.copysign(x, x.sum())
        return whole, whole.flatten()

    torch._dynamo.reset()
    got, expected = torch.compile(program, backend=OrtBackend())(x), program(x)
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(
        torch.autograd.grad(got[1].sum() + got[0].exp().sum(), x),
        torch.autograd.grad(expected[1].sum() + expected[0].exp().sum(), x),
    )


def test_what_is_made_dense_for_nothing_hides_no_copy() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        x.t().fill_(1)
        means = torch.nn.functional.adaptive_avg_pool1d(x.t()[None], 2)
        means.contiguous().chunk(2, -1)[-1]
        return means

    torch._dynamo.reset()
    compiled = torch.compile(program, backend=OrtBackend())
    got, expected = compiled(torch.zeros(1, 3)), program(torch.zeros(1, 3))
    torch.testing.assert_close(got, expected)
    assert got.stride() == expected.stride()


MADE_DENSE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a view": lambda x: (2**x).mT.contiguous().mT,
    "in places": lambda x: (2**x).mT.contiguous().as_strided((5,), (2,)),
    "copied": lambda x: (2**x).mT.contiguous().mT.exp(),
    "dropped out": lambda x: torch.nn.functional.dropout((2**x).mT.contiguous().mT, 0.5),
    "moved": lambda x: torch.nn.functional.logsigmoid(x).mT.contiguous().mT.flip(0),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", MADE_DENSE)
def test_what_is_made_dense_is_copied(name: str, dynamic: bool) -> None:
    """``contiguous()`` has nothing to do in what is traced, and copies in eager mode."""
    if dynamic and name == "in places":
        pytest.skip("as_strided of symbolic sizes runs in torch, as AOTAutograd traced it")
    program, x = MADE_DENSE[name], torch.randn(2, 3, 4, dtype=torch.float64).mT
    torch._dynamo.reset()
    compiled = torch.compile(program, backend=OrtBackend(), dynamic=dynamic)
    torch.manual_seed(0)
    got = compiled(x)
    torch.manual_seed(0)
    expected = program(x)
    torch.testing.assert_close(got, expected)
    assert got.stride() == expected.stride()


def test_images_made_dense_with_their_channels_last() -> None:
    x = torch.randn(2, 5, 4, 3, dtype=torch.float64).permute(0, 3, 1, 2)

    def program(x: torch.Tensor) -> torch.Tensor:
        return (2**x).permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)

    torch._dynamo.reset()
    got, expected = torch.compile(program, backend=OrtBackend())(x), program(x)
    torch.testing.assert_close(got, expected)
    assert got.stride() == expected.stride()


F = torch.nn.functional
OF_SIZES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "rolled": lambda x: x.detach().roll(3, 1),
    "rolled twice": lambda x: x.detach().roll((1, 7), (1, 2)),
    "cut": lambda x: F.pad(x[:, 1:], (-2, 0, -1, -1)),
    "cut and repeated": lambda x: F.pad(x, (0, 0, 3, -3), "replicate"),
    "of one row": lambda x: F.avg_pool2d(x[..., :1], (5, 1), 1, (2, 0)),
    "transformed": lambda x: torch.fft.rfft(x + 1, dim=1),
    "transformed back": lambda x: torch.fft.irfft(torch.complex(x, x), dim=1),
    "gated": lambda x: F.glu(torch.cat([x, x], 1), 1),
}


@pytest.mark.parametrize("name", OF_SIZES)
def test_strides_that_hang_on_sizes(name: str) -> None:
    """Kernels are asked with few elements: of more than a window, a margin or a shift."""
    channels_last = torch.randn(2, 4, 7, 6).to(memory_format=torch.channels_last)
    _assert_same_strides(OF_SIZES[name], [channels_last])


ROWS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "convolved": F.conv1d,
    "with steps": lambda x, w: F.conv1d(x, w, stride=2, padding=1),
    "in groups": lambda x, w: F.conv1d(x, w[:, :2], groups=2, dilation=2) * 2,
    "transposed with steps": lambda x, w: F.conv_transpose1d(x, w, stride=2, output_padding=1),
    "transposed in groups": lambda x, w: F.conv_transpose1d(x, w, groups=2),
    "one alone": lambda x, w: F.conv1d(x[0], w),
}


@pytest.mark.parametrize("name", ROWS)
def test_strides_of_convolutions_of_one_axis(name: str) -> None:
    """oneDNN takes them for images of one row, whose channels may come last."""
    w = torch.randn(4, 3, 4).mT
    _assert_same_strides(ROWS[name], [torch.randn(2, 4, 6), w], [torch.randn(2, 6, 4).mT, w])


def _assert_same_strides(program: Callable[..., torch.Tensor], *calls: list[torch.Tensor]) -> None:
    """Results and gradients have the numbers and the strides of eager mode, but no gaps."""
    torch._dynamo.reset()
    compiled = torch.compile(program, backend=OrtBackend(), dynamic=False)
    for arguments in calls:
        ours, eagers = (_with_gradients(run, arguments) for run in (compiled, program))
        for got, expected in zip(ours, eagers, strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-3)
            if torch.ops.aten.is_non_overlapping_and_dense(expected):
                assert _steps(got) == _steps(expected)


def _with_gradients(
    run: Callable[..., torch.Tensor], arguments: list[torch.Tensor]
) -> list[torch.Tensor]:
    given = [x.detach().requires_grad_() for x in arguments]
    result = run(*given)
    if not result.requires_grad:
        return [result]
    seed = torch.empty_like(result).copy_(torch.arange(result.numel()).view(result.shape))
    return [result.detach(), *torch.autograd.grad(result, given, seed)]


def _steps(value: torch.Tensor) -> list[int]:
    """The strides that say where elements are."""
    return [s for s, n in zip(value.stride(), value.shape, strict=True) if n > 1]
