"""Rows of numbers of which some are not finite or huge: places of NaN and signs as in eager mode.

Each test is one or two programs, called with many tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.nn import functional

from tests.backends.ways import compile_strictly

INF, NAN = math.inf, math.nan
ROWS = (
    [3e19, -3e19, 1.0],
    [INF, 1.0, 2.0],
    [1.0, 2.0, INF],
    [INF, 1.0, INF],
    [1.0, -INF, NAN],
    [1e30, 1e30, -1e30],
    [3e38, 3e38, 3e38],
    [-0.0, -0.0, -0.0],
    [1.0, 2.0, 4.0],
)

Program = Callable[..., Sequence[Any]]


def _compare(program: Program, calls: Sequence[Sequence[torch.Tensor]]) -> None:
    """Compare results, and the gradients of those that have some."""
    torch._dynamo.reset()
    compiled, _ = compile_strictly(program, fallback=True)
    found = []
    for given in calls:
        got, expected = (_results(f, given) for f in (compiled, program))
        for i, (a, b) in enumerate(zip(got, expected, strict=True)):
            assert (a.dtype, a.shape) == (b.dtype, b.shape)
            if not _is_same(a, b):
                found.append(f"{given}, result {i}: got {a.tolist()}, eager {b.tolist()}")
    assert not found, "\n".join(found)


def _results(function: Program, given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    copies = [x.detach().clone().requires_grad_(x.requires_grad) for x in given]
    results = list(function(*copies))
    ends = [r for r in results if r.requires_grad]
    starts = [x for x in copies if x.requires_grad]
    if not ends or not starts:
        return results
    seeds = [torch.linspace(-1, 1, r.numel()).view(r.shape).to(r.dtype) for r in ends]
    return [*(r.detach() for r in results), *torch.autograd.grad(ends, starts, seeds)]


def _is_same(got: torch.Tensor, expected: torch.Tensor) -> bool:
    a, b = got.double(), expected.double()
    zeros = (a == 0) & (b == 0)
    limit = 2e-2 if expected.dtype is torch.bfloat16 else 1e-4
    close = (a - b).abs() <= limit * (b.abs() + 0.1)
    same = (a == b) | (a.isnan() & b.isnan()) | (close & a.isfinite() & b.isfinite())
    return bool((same & ~(zeros & (a.signbit() != b.signbit()))).all())


def _rows(dtype: torch.dtype, repeats: int = 1) -> list[tuple[torch.Tensor]]:
    return [(torch.tensor([row] * repeats, dtype=dtype),) for row in ROWS]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_variances_and_means(dtype: torch.dtype) -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            x.std(), x.var(-1), x.std(-1, unbiased=False), *torch.var_mean(x, -1),
            *torch.std_mean(x, keepdim=True), x.logsumexp(-1), x.logsumexp((0, 1)), x.cumsum(-1),
        )  # fmt: skip

    _compare(program, _rows(dtype))


def test_a_variance_along_other_axes() -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.stack([x, x * 2])
        return y.var(0), *torch.std_mean(y, (0, 2)), y.std((0, 1), keepdim=True)

    _compare(program, _rows(torch.float32))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_norms(dtype: torch.dtype) -> None:
    """The statistics of a layer norm are as torch's steps from number to number leave them."""

    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        wide = torch.cat([x, x.flip(1), x * 0 + 0.5, x], 1)
        return (
            *torch.native_layer_norm(x, (3,), None, None, 1e-5),
            *torch.native_layer_norm(wide, (12,), None, None, 1e-5),
            *torch.native_group_norm(x.view(1, 2, 3), None, None, 1, 2, 3, 2, 1e-5),
        )

    _compare(program, _rows(dtype, 2)[1:])


def test_weights_of_norms() -> None:
    weights = [torch.tensor([INF, 1.0]), torch.tensor([NAN, -INF]), torch.tensor([2.0, 0.5])]
    x = torch.tensor([[1.0, -2.0, 4.0], [-1.0, 3.0, -2.0]])

    def program(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        batch = functional.batch_norm(x.view(1, 2, 3), None, None, w, w * 0 + 1, True)
        rows = functional.batch_norm(x.t(), None, None, w, w * 0 + 1, True)
        return functional.group_norm(x.view(1, 2, 3), 1, w, w * 0 + 1), batch, rows

    _compare(program, [(x, w) for w in weights])


def test_gradients_of_norms() -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return functional.layer_norm(x, (3,)), functional.group_norm(x.view(1, 2, 3), 2)

    _compare(program, [(x.requires_grad_(),) for (x,) in _rows(torch.float32, 2)[:6]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("count", [4, 70])
def test_zeros_of_two_signs(dtype: torch.dtype, count: int) -> None:
    """Not of ``maximum``: torch takes the second one in whole vectors, else the first one."""

    def program(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.fmax(x, y), torch.fmin(x, y), torch.where(x > 1, x, y)

    x = torch.tensor([0.0, -0.0] * count, dtype=dtype)[:count]
    _compare(program, [(x, -x)])


def test_what_a_weight_or_a_distance_hangs_on() -> None:
    def program(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a, b = x.view(2, 4), x.flip(0).view(2, 4)
        soft = functional.soft_margin_loss(x * 100, torch.sign(w * 0 + 1).expand(8))
        smooth = functional.smooth_l1_loss(x, w.expand(8), reduction="none")
        return functional.prelu(x, w), torch.cdist(a, b, 0.0), torch.logit(x), soft, smooth

    x = torch.tensor([0.0, -0.0, 1.0, -1.0, 0.5, NAN, 2.0, -3.0])
    calls = [(x.clone().requires_grad_(), torch.tensor([w])) for w in (INF, -INF, NAN, 0.25)]
    _compare(program, calls)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_zeros_that_are_copied_or_added(dtype: torch.dtype) -> None:
    """-0.0 is kept where it is copied, and is 0.0 where it is added to zeros."""
    x = torch.tensor([[-0.0, 1.0, -0.0, -2.0, 0.0, -0.0]], dtype=dtype)
    windows = torch.tensor([[[-0.0], [-0.0], [2.0]]], dtype=dtype)

    def program(x: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, ...]:
        apart = torch.ops.aten.unfold_backward(g, [1, 6], 1, 1, 2)
        over = torch.ops.aten.unfold_backward(g.expand(1, 3, 2), [1, 4], 1, 2, 1)
        pooled, places = functional.max_pool2d(x[None], (1, 2), return_indices=True)
        unpooled = torch.ops.aten.max_pool2d_with_indices_backward(
            -pooled * 0, x[None], [1, 2], [1, 2], [0, 0], [1, 1], False, places
        )
        sums = x.sum(0), (x * 0 - 0.0).sum(1), (-x.abs() * 0).mean()
        return apart, over, unpooled, x.logcumsumexp(1), x.cumsum(1), *sums

    _compare(program, [(x, windows)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_what_is_not_multiplied(dtype: torch.dtype) -> None:
    """A norm of one element has no power, a loss no zeros beside a gradient that is infinite."""
    weight = torch.tensor([2.0, -1.0, 3.0], dtype=dtype)
    target = torch.tensor([[[0, 1]], [[2, -100]]])
    seeds = torch.tensor([[[INF, 1.0]], [[NAN, INF]]], dtype=dtype)

    def program(x: torch.Tensor, seeds: torch.Tensor) -> tuple[torch.Tensor, ...]:
        arguments = (x, target, weight, 0, -100, weight.sum())
        return (
            torch.linalg.vector_norm(x[:1, :1], 4, (0, 1)),
            torch.ops.aten.nll_loss2d_backward(seeds, *arguments),
        )

    x = torch.full((2, 3, 1, 2), 1e30, dtype=dtype)
    _compare(program, [(x, seeds), (x * 0 + 1, seeds * 0)])


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_zeros_of_classes(dtype: torch.dtype, reduction: str) -> None:
    """The loss of a zero, of one sample or more."""
    places = torch.tensor([4, 0, 1])

    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            functional.nll_loss(x, places, reduction=reduction),
            functional.nll_loss(x[0], places[0], reduction=reduction),
            functional.nll_loss(x[0], places[0], ignore_index=4, reduction=reduction),
        )

    x = torch.zeros((3, 5), dtype=dtype)
    _compare(program, [(x,), (-x,)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_gradient_of_a_class_that_is_zero(dtype: torch.dtype) -> None:
    def program(y: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        places = torch.tensor([4, 0, 1])
        chosen = torch.ops.aten.nll_loss_backward(g, y, places, None, 0, -100, y[0, 0])
        return torch.ops.aten._log_softmax_backward_data(chosen, y, 1, y.dtype)

    y = torch.linspace(-1, 1, 15, dtype=dtype).view(3, 5).log_softmax(1)
    seeds = torch.tensor([0.0, -0.0, 1.0], dtype=dtype)
    _compare(program, [(y, seeds), (y, -seeds)])


def test_statistics_and_filters() -> None:
    """A deviation of zero, numbers out of range of their own mean, filters with an infinity."""

    def program(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        planes, ones = x.view(1, 2, 2, 8).repeat(1, 1, 4, 1), torch.ones(2)
        rows = functional.batch_norm(x.view(-1, 2), ones, ones * INF, w, ones)
        return (
            rows,
            functional.instance_norm(x.view(1, 2, 16), weight=w),
            functional.group_norm(x.view(1, 2, 16).bfloat16(), 2),
            functional.conv2d(
                planes * 0 + 1, w.view(2, 1, 1, 1).expand(2, 1, 3, 3), padding=1, groups=2
            ),
        )

    x = torch.linspace(-2, 3, 32)
    huge = x.where(x < 2.9, 3e38)
    calls = [(given, torch.tensor([w, 1.0])) for given in (x, huge) for w in (INF, NAN, 2.0)]
    _compare(program, calls)


def test_a_gradient_of_a_layer_norm_of_float64() -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (functional.layer_norm(x, (3,)) * INF,)

    x = torch.tensor([[1.0, 2.0, 4.0], [3.0, -1.0, 2.0]], dtype=torch.float64)
    _compare(program, [(x.requires_grad_(),)])


def test_moments_of_float64() -> None:
    """They move from number to number, as torch's do: what is out of range hangs on the order."""

    def program(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return functional.layer_norm(x * 1, (3,), weight) * 2, *torch.var_mean(x * 2, -1)

    rows = ([1e200, -1e200, 1.0], [1.0, 2.0, INF], [INF, 1.0, 2.0], [1e308, 1e308, -1e308])
    weight = torch.tensor([1.0, -2.0, 0.5]).double()
    _compare(program, [(torch.tensor([row]).double(), weight) for row in (*ROWS, *rows)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_the_first_of_two_zeros(dtype: torch.dtype) -> None:
    """The first of both, where torch has no whole vector; NaN of either."""

    def program(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        greater, smaller = torch.maximum(x, y), torch.minimum(x, y)
        bounded = torch.clamp(x, min=y), torch.clamp(x, max=y)
        return greater, smaller, *bounded, torch.maximum(x * 2, y * 3) * 2, torch.minimum(y, x * 2)

    x, y = [0.0, -0.0, 0.0, 1.0, NAN, -0.0, INF], [-0.0, 0.0, 1.0, -0.0, -0.0, NAN, -INF]
    _compare(program, [(torch.tensor(x, dtype=dtype), torch.tensor(y, dtype=dtype))])


def test_distances_of_what_is_not_finite() -> None:
    """NaN is no largest distance, and its gradient NaN; of an equal coordinate NaN beside it."""

    def program(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(torch.cdist(x, y, p=p) for p in (INF, 0.5, 1.0, 1.5, 2.0, 3.0))

    y = torch.tensor([[1.0, INF, 0.0], [NAN, NAN, NAN], [0.0, -1.0, 2.0]])
    rows = ([[NAN, 1.0, 2.0], [INF, 1.0, 0.0]], [[-INF, 0.0, 0.0], [0.0, 0.0, NAN]])
    _compare(program, [(torch.tensor(r).requires_grad_(), y.requires_grad_()) for r in rows])


def test_a_bilinear_form_of_what_is_not_finite() -> None:
    """Its gradients are sums of products of three: an infinity is in them with both signs."""

    def program(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (functional.bilinear(x, y, w),)

    torch.manual_seed(0)
    given = [torch.randn(s) for s in ((2, 3), (2, 4), (5, 3, 4))]
    calls = [
        [_with(t, numbers) if i == changed else t for i, t in enumerate(given)]
        for changed in range(3)
        for numbers in ({0: INF}, {0: -INF, -1: INF}, {1: NAN}, {2: INF, 3: 0.0})
    ]
    _compare(program, [[t.requires_grad_() for t in call] for call in calls])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_zeros_in_the_gradient_of_a_cross_entropy(dtype: torch.dtype) -> None:
    """At probabilities of zero, and in rows that do not count or whose gradient is zero."""
    target = torch.tensor([0, 1, 2, -100])

    def program(x: torch.Tensor, seeds: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (functional.cross_entropy(x, target, reduction="none") * seeds,)

    torch.manual_seed(0)
    x = torch.randn(4, 3).to(dtype).index_fill(1, torch.tensor([0]), -INF).requires_grad_()
    factors = (1.0,) if dtype is torch.float64 else (1.0, 0.0)  # of zeros see troubleshooting.md
    calls = [[x, torch.full((4,), sign * f).to(dtype)] for f in factors for sign in (1, -1)]
    _compare(program, calls)


def test_bessel_functions_and_bins() -> None:
    """Numbers below the normal ones, beyond a power that float32 holds, and beside an edge."""

    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        special = torch.special
        bins = torch.histc(x.clamp(-10, 10), 100, -10, 10)
        return special.bessel_j1(x), special.bessel_y1(x), special.airy_ai(x), bins

    x = torch.tensor([0.0, -0.0, 2.0**-128, -1e30, -1e-30, INF, NAN, 1.0, 10.0])
    _compare(program, [(x,)])


def test_what_no_operator_of_onnx_shows() -> None:
    """The sign of a NaN; derivatives of the digamma function at its poles."""
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.tensor([NAN, -NAN, 0.0, -0.0, INF, -1.0], dtype=dtype)

        def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            signs = torch.signbit(x) * 1, torch.copysign(torch.ones_like(x), x)
            return *signs, torch.polygamma(2, x) * 1

        _compare(program, [(x,)])


@pytest.mark.parametrize("name", ["e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz"])
def test_numbers_rounded_to_float8(name: str) -> None:
    """They stay in a model, of an opset that has the type; beyond its range they are torch's."""
    dtype = getattr(torch, f"float8_{name}")

    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return ((x * 2).to(dtype).float() + 1,)

    x = torch.tensor(
        [0.0, -0.0, 0.3, -1.5, 224, 232, 232.5, 240, 248, 124, 28672, 30720, 30721, 1e30, INF,
         -INF, NAN, 1e-30, 2.0**-11, 2.0**-18, 1.3 * 2.0**-18, -1e-40]
    )  # fmt: skip
    compiled, _ = compile_strictly(program)  # without a fallback
    for given in (x, -x):
        (got,), (expected,) = compiled(given), program(given)
        assert _is_same(got, expected), (got, expected)


def _convolutions(x: torch.Tensor, line: torch.Tensor, *weights: torch.Tensor) -> Sequence[Any]:
    plain, single, of_line, transposed, strided = weights
    return (
        functional.conv2d(x, plain, padding=1).relu(),
        functional.conv2d(x, plain, padding="same", dilation=2),
        functional.conv2d(x, single, padding=1, groups=4),
        functional.conv1d(line, of_line, padding=2, dilation=2),
        functional.conv_transpose2d(x, transposed, padding=1, stride=2),
        functional.conv2d(x, strided, padding=(2, 0), stride=(3, 2)).tanh(),
    )


WEIGHTS = ((4, 4, 3, 3), (4, 1, 3, 3), (4, 4, 3), (4, 4, 3, 3), (4, 4, 5, 3))
NOT_FINITE = ({0: INF}, {-1: NAN}, {4: INF, 6: -INF}, {0: -INF})


def _with(tensor: torch.Tensor, numbers: dict[int, float]) -> torch.Tensor:
    changed = tensor.clone()
    for place, number in numbers.items():
        changed.view(-1)[place] = number
    return changed


def test_padding_is_not_multiplied_with_what_is_not_finite() -> None:
    """With weights, or with gradients that come in, where images are weights of theirs."""
    torch.manual_seed(0)
    images = torch.randn(2, 4, 6, 6), torch.randn(2, 4, 9)
    calls = []
    for numbers in NOT_FINITE:
        weights = map(torch.randn, WEIGHTS)
        calls.append((*images, *(_with(w, numbers) for w in weights)))
    calls.append((*(_with(t, {0: INF}) for t in images), *map(torch.randn, WEIGHTS)))
    _compare(_convolutions, [[t.requires_grad_() for t in given] for given in calls])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rank", [2, 3])
def test_padding_of_channels_that_lie_behind_is_not_multiplied(
    rank: int, dtype: torch.dtype
) -> None:
    """As torch leaves it out of the gradients of grouped filters, if its images lie like that."""
    layout = torch.channels_last if rank == 2 else torch.channels_last_3d
    convolve = functional.conv2d if rank == 2 else functional.conv3d

    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return convolve(x, w, padding=1, groups=2)

    compiled = torch.compile(program, backend="onnxrt")
    torch._dynamo.reset()
    x = torch.randn(1, 6, *[6] * rank).to(dtype).contiguous(memory_format=layout)
    w = torch.randn(8, 3, *[3] * rank).to(dtype).requires_grad_()
    seeds = torch.randn(1, 8, *[6] * rank).to(dtype)
    seeds.view(-1)[::97] = INF
    eager, ours = (torch.autograd.grad(f(x, w), w, seeds)[0] for f in (program, compiled))
    assert not (ours.isnan() & ~eager.isnan()).any()


def test_padding_of_bfloat16_is_not_multiplied() -> None:
    """In a convolution, and the gradient of a transposed one, that are between casts."""

    def program(
        x: torch.Tensor, transposed: torch.Tensor, single: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        return (
            functional.conv_transpose1d(x, transposed, stride=2, padding=1, groups=4),
            functional.conv1d(x, single, stride=3, padding=1, groups=4),
        )

    torch.manual_seed(0)
    calls = [
        [t.bfloat16() for t in (torch.randn(2, 4, 7), _with(torch.randn(4, 1, 5), numbers), w)]
        for numbers in NOT_FINITE
        for w in (_with(torch.ones(4, 1, 1), {0: INF}), torch.ones(4, 1, 1))
    ]
    _compare(program, [[t.requires_grad_() for t in call] for call in calls])


@pytest.mark.parametrize("numbers", NOT_FINITE[:2], ids=str)
def test_frozen_weights_that_are_not_finite(numbers: dict[int, float]) -> None:
    """They are looked at when the model is built."""
    torch.manual_seed(0)
    images = torch.randn(2, 4, 6, 6), torch.randn(2, 4, 9)
    weights = torch.nn.ParameterList([_with(torch.randn(s), numbers) for s in WEIGHTS])

    def program(*images: torch.Tensor) -> Sequence[Any]:
        return _convolutions(*images, *[weights[i] for i in range(len(WEIGHTS))])

    with torch.no_grad():
        compiled, _ = compile_strictly(program, freeze=True)
        assert all(map(_is_same, compiled(*images), program(*images)))
