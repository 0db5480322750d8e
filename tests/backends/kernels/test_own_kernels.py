"""Operators with kernels of our own: the exporter writes them where the set is chosen."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from dort_rewriter.compiler.block import compile_graph
from dort_rewriter.export.dispatcher import Dispatcher
from dort_rewriter.kernels import build as kernel_build
from dort_rewriter.kernels import library as kernel_library
from dort_rewriter.kernels import loading as custom_kernels
from dort_rewriter.kernels.operators import OWN_DOMAIN
from dort_rewriter.options import OptimizationOptions, OrtBackendOptions
from dort_rewriter.plan.placement import uses_own_kernels
from dort_rewriter.plan.recipe import BuiltBlock, Recipe
from dort_rewriter.runtime.providers import CPU

aten = torch.ops.aten
ALL = "default+onnxruntime+experimental"


def compiled(
    function: Callable[..., Any],
    *args: Any,
    patterns: str = ALL,
    mode: str = "real",
    provider: str = CPU,
    **options: Any,
) -> tuple[Callable[..., Any], set[str]]:
    """Compile the ATen operators of a function; return it, and a set for its own operators."""
    blocks: list[BuiltBlock] = []
    recipe = Recipe(
        dispatcher=Dispatcher(),
        options=OrtBackendOptions(
            optimization=OptimizationOptions(patterns=patterns), fallback=False, **options
        ),
        select_providers=lambda graph, args: [(provider, {})],
        on_built=blocks.append,
    )
    graph = make_fx(function, tracing_mode=mode)(*args)
    run = compile_graph(graph, recipe)
    used: set[str] = set()

    def call(*args: Any) -> Any:
        results = run(list(args))
        nodes = [n for b in blocks for n in b.exported.model.graph]
        own = {n.op_type for n in nodes if n.domain == OWN_DOMAIN}
        used.update(own - {"Elementwise", "Sum"})  # which any rest may become
        return results

    return call, used


def check(
    function: Callable[..., Any],
    *args: Any,
    uses: set[str],
    rtol: float = 1e-5,
    atol: float = 1e-5,
    **settings: Any,
) -> None:
    """Check the results against torch's, and which operators of our own the model has."""
    run, used = compiled(function, *args, **settings)
    expected = function(*args)
    expected = expected if isinstance(expected, list | tuple) else (expected,)
    got = run(*args)
    assert used == uses
    assert len(got) == len(expected)
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=rtol, atol=atol, equal_nan=True)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


# -- convolutions -------------------------------------------------------------------------------

FILTERS: dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[Any, ...]]] = {
    "7x7": ((2, 8, 16, 16), (7, 7), (1, 3)),
    "3x3, stride 2": ((2, 8, 15, 18), (3, 3), (2, 1)),
    "stride 3, dilated": ((1, 4, 40, 33), (4, 5), ([3, 1], [2, 4], [2, 3])),
    "wide": ((1, 3, 5, 100), (2, 9), (1, [0, 4])),
    "one row of windows": ((3, 2, 4, 45), (4, 5), (1, 0)),
}
UNFIT: dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[Any, ...]]] = {
    "points": ((2, 8, 16, 16), (1, 1), (1, 0)),
    "few taps": ((2, 8, 16, 16), (2, 2), (1, 0)),
    "narrow": ((1, 4, 128, 1), (9, 1), (1, [4, 0])),
    "gaps": ((1, 4, 40, 40), (3, 3), (4, 1)),
    "one window": ((3, 2, 7, 7), (7, 7), (1, 0)),
    "a large image": ((1, 2, 8, 8), (3, 3), ([1, 2], 600, 500)),
}


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("name", FILTERS)
def test_a_filter_for_each_channel(name: str, biased: bool) -> None:
    shape, kernel, how = FILTERS[name]
    channels = shape[1]
    x, w, b = torch.randn(shape), torch.randn(channels, 1, *kernel), torch.randn(channels)
    stride, padding, dilation = (*how, 1)[:3]

    def convolve(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.conv2d(x, w, b if biased else None, stride, padding, dilation, channels)

    check(convolve, x, w, b, uses={"DepthwiseConv"})
    check(convolve, x.transpose(-1, 1).contiguous().transpose(-1, 1), w, b, uses={"DepthwiseConv"})


@pytest.mark.parametrize("name", UNFIT)
def test_a_filter_for_each_channel_that_onnxruntime_computes(name: str) -> None:
    """Where its product of matrices is faster, or an image too large to be copied."""
    shape, kernel, how = UNFIT[name]
    x, w = torch.randn(shape), torch.randn(shape[1], 1, *kernel)
    stride, padding, dilation = (*how, 1)[:3]
    check(
        lambda x, w: torch.conv2d(x, w, None, stride, padding, dilation, shape[1]),
        x,
        w,
        uses=set() if padding == 0 else {"PaddingLeftOut"},
    )


DIRECT: dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[Any, ...]]] = {
    "3x3": ((2, 4, 9, 21), (6, 4, 3, 3), (1, 1)),
    "more filters than at once": ((1, 3, 12, 33), (21, 3, 3, 3), (1, 1)),
    "narrow": ((5, 16, 4, 4), (8, 16, 3, 3), (1, 1)),
    "no padding": ((3, 4, 9, 21), (5, 4, 2, 4), (1, 0)),
    "strided": ((2, 3, 17, 16), (4, 3, 7, 7), (2, 3)),
    "strided, dilated": ((2, 3, 30, 33), (4, 3, 3, 4), ([2, 3], [4, 1], [3, 1])),
    "padding beyond the windows": ((2, 8, 3, 5), (4, 8, 2, 3), (1, [4, 6])),
    "one axis": ((3, 6, 40), (5, 6, 3), (1, 1)),
    "one axis, strided": ((3, 80, 41), (5, 80, 5), (2, 2, 2)),
}
NOT_DIRECT: dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[Any, ...]]] = {
    "points": ((2, 32, 9, 9), (6, 32, 1, 1), (1, 0)),
    "patches": ((2, 3, 16, 16), (6, 3, 4, 4), (4, 0)),
    "few numbers": ((2, 1, 9, 9), (6, 1, 3, 3), (1, 0)),
    "three axes": ((1, 4, 6, 6, 6), (3, 4, 3, 3, 3), (1, 0)),
    "groups": ((2, 8, 9, 9), (6, 4, 3, 3), (1, 0, 1, 2)),
}


def _normalized(y: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    of = aten._native_batch_norm_legit_no_training(y, b + 1, b - 1, b, b * b, 0.1, 1e-5)
    return cast(torch.Tensor, of[0])


def _convolution(shape: tuple[int, ...], how: tuple[Any, ...]) -> Callable[..., torch.Tensor]:
    run: Callable[..., torch.Tensor] = getattr(torch, f"conv{len(shape) - 2}d")
    return lambda x, w, b: run(x, w, b, *how)


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("name", DIRECT)
def test_each_channel_reads_all(name: str, biased: bool) -> None:
    """Also with channels that lie last, and a Relu behind."""
    shape, kernel, how = DIRECT[name]
    convolve = _convolution(shape, how)
    x, w, b = torch.randn(shape), torch.randn(kernel), torch.randn(kernel[0])

    def plain(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return convolve(x, w, b if biased else None)

    def with_relu(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.relu(plain(x, w, b))

    def normalized(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return _normalized(plain(x, w, b), b)

    def with_all(
        x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, other: torch.Tensor
    ) -> torch.Tensor:
        return torch.relu(other + normalized(x, w, b))

    channels_last = w.movedim(1, -1).contiguous().movedim(-1, 1)
    other = torch.randn_like(plain(x, w, b))
    close = {"rtol": 1e-4, "atol": 1e-4}
    for weight in (w, channels_last):
        for function in (plain, with_relu):
            check(function, x, weight, b, uses={"DirectConv"})
        check(normalized, x, weight, b, uses={"DirectConv"}, **close)
        check(with_all, x, weight, b, other, uses={"DirectConv"}, **close)


@pytest.mark.parametrize("name", NOT_DIRECT)
def test_what_a_product_computes_as_fast(name: str) -> None:
    shape, kernel, how = NOT_DIRECT[name]
    convolve = _convolution(shape, how)
    check(lambda x, w: convolve(x, w, None), torch.randn(shape), torch.randn(kernel), uses=set())


@pytest.mark.parametrize("number", [torch.inf, torch.nan])
def test_no_filter_that_is_not_finite_multiplies_the_padding(number: float) -> None:
    """Of a convolution, and of the gradient of its input, which is one."""
    x, w, b = torch.randn(4, 3, 12, 12), torch.randn(5, 3, 3, 3), torch.rand(5)
    w[2, 1, 0, 2] = number
    check(lambda x, w: torch.conv2d(x, w, padding=1), x, w, uses={"DirectConv"})

    def with_all(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        y = torch.conv2d(x, w, b, stride=(1, 2), padding=(2, 2), dilation=(2, 1))
        return torch.relu(_normalized(y, b) + x[:, :1, :, 5:])

    x[1, 1, 3, 4] = torch.nan
    x[2, 2, 0, 0] = torch.inf
    check(with_all, x, w, b, uses={"DirectConv"}, rtol=1e-4, atol=1e-4)
    x = x.nan_to_num(0, 1)

    def backward(g: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> Any:
        how = [1, 1], [0, 0], [1, 1], False, [0, 0], 1
        return aten.convolution_backward(g, x, w, None, *how, [True, False, False])[0]

    used = {"DirectConv"}
    check(backward, torch.randn(4, 5, 10, 10), x, w, uses=used, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["same", "valid", "dilated", "wide kernel", "one axis"])
@pytest.mark.parametrize("channels_last", [False, True])
def test_gradients_of_inputs(name: str, channels_last: bool) -> None:
    """Of windows that lie one place apart: convolutions with the filters turned."""
    shape, kernel, padding, dilation = {
        "same": ((4, 6, 12, 11), (16, 6, 3, 3), [1, 1], [1, 1]),
        "valid": ((4, 6, 12, 11), (16, 6, 3, 2), [0, 0], [1, 1]),
        "dilated": ((3, 4, 16, 15), (16, 4, 3, 3), [1, 3], [2, 3]),
        "wide kernel": ((2, 3, 20, 21), (9, 3, 5, 7), [2, 3], [1, 1]),
        "one axis": ((4, 5, 80), (7, 5, 3), [2], [1]),
    }[name]
    x, w, axes = torch.randn(shape), torch.randn(kernel), len(shape) - 2
    if channels_last:
        w = w.movedim(1, -1).contiguous().movedim(-1, 1)
    how = [1] * axes, padding, dilation, False, [0] * axes, 1
    g = torch.randn_like(aten.convolution(x, w, None, *how))

    def backward(g: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> Any:
        return aten.convolution_backward(g, x, w, None, *how, [True, False, False])[0]

    run, used = compiled(backward, g, x, w)
    torch.testing.assert_close(run(g, x, w)[0], backward(g, x, w), rtol=1e-4, atol=1e-4)
    assert "DirectConv" in used


def test_a_filter_for_each_channel_of_images_of_any_size() -> None:
    def convolve(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return torch.conv2d(x, scale * torch.ones(8, 1, 3, 3), None, 2, 1, 1, 8)

    scale = torch.randn(())
    run, used = compiled(convolve, torch.randn(2, 8, 12, 14), scale, mode="symbolic")
    for shape in ((2, 8, 12, 14), (3, 8, 33, 7), (5, 8, 3, 40)):
        x = torch.randn(shape)
        torch.testing.assert_close(run(x, scale)[0], convolve(x, scale), rtol=1e-5, atol=1e-5)
    assert used == {"PaddingLeftOut"}


# -- pooling ------------------------------------------------------------------------------------

POOLS: dict[str, tuple[tuple[int, ...], tuple[Any, ...]]] = {
    "halves": ((2, 3, 16, 20), ([2, 2], [2, 2])),
    "odd sizes": ((2, 3, 7, 37), ([2, 2], [2, 2])),
    "overlap and padding": ((2, 3, 17, 33), ([3, 3], [2, 2], [1, 1])),
    "strides of one": ((1, 2, 9, 19), ([3, 2], [1, 1], [1, 1])),
    "long strides": ((1, 2, 30, 50), ([2, 3], [3, 4])),
    "dilation": ((2, 2, 20, 24), ([3, 3], [2, 1], [1, 1], [2, 3])),
    "ceil mode": ((2, 2, 10, 12), ([3, 3], [2, 2], [0, 1], [1, 1], True)),
    "ceil mode, last window outside": ((1, 1, 5, 5), ([2, 2], [3, 3], [1, 1], [1, 1], True)),
    "one plane": ((3, 8, 8), ([2, 2],)),
    "a window as large as the plane": ((2, 2, 4, 5), ([4, 5],)),
    "volumes": ((2, 3, 6, 5, 9), ([2, 2, 2], [2, 2, 2])),
    "volumes that overlap": ((2, 7, 6, 9), ([3, 3, 2], [2, 1, 1], [1, 0, 1])),
    "volumes, dilation": ((1, 2, 9, 8, 9), ([2, 3, 2], [1, 2, 1], [1, 1, 0], [2, 1, 3], True)),
}


def _pooling(arguments: tuple[Any, ...], part: str = "") -> Any:
    return getattr(aten, f"max_pool{len(arguments[0])}d_with_indices{part}")


def _with_specials(*shape: int) -> torch.Tensor:
    """Numbers, equal ones among them, with NaN and infinities."""
    x = torch.randn(shape).mul(3).round()
    flat = x.view(-1)
    for value in (math.nan, math.inf, -math.inf):
        flat[torch.randint(len(flat), (max(1, len(flat) // 20),))] = value
    return x


@pytest.mark.parametrize("name", POOLS)
@pytest.mark.parametrize("special", [False, True])
def test_max_pool(name: str, special: bool) -> None:
    """Values and places are torch's, bit for bit: the first of equals, the last NaN."""
    shape, arguments = POOLS[name]
    x = _with_specials(*shape) if special else torch.randn(shape)

    def pool(x: torch.Tensor) -> Any:
        return _pooling(arguments)(x, *arguments)

    check(pool, x, uses={"MaxPool"}, rtol=0, atol=0)
    zeros = torch.tensor([0.0, -0.0])[torch.randint(2, shape)]
    for given in (x, zeros):  # whose signs are those of infinities
        check(lambda x: pool(x)[0].reciprocal(), given, uses={"MaxPool"}, rtol=0, atol=0)
    y, places = pool(x)
    grad = torch.randn(y.shape)

    def gradient(grad: torch.Tensor, x: torch.Tensor, places: torch.Tensor) -> Any:
        kernel, stride, padding, dilation, ceil = _complete(arguments)
        differentiate = _pooling(arguments, "_backward")
        return differentiate(grad, x, kernel, stride, padding, dilation, ceil, places)

    check(gradient, grad, x, places, uses={"MaxPoolGrad"})


@pytest.mark.parametrize("name", ["halves", "overlap and padding", "one plane", "volumes"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_max_pool_of_16_bits(name: str, dtype: torch.dtype) -> None:
    """Values, places and gradients are torch's."""
    shape, arguments = POOLS[name]
    x = _with_specials(*shape).to(dtype)

    def pool(x: torch.Tensor) -> Any:
        return _pooling(arguments)(x, *arguments)

    check(pool, x, uses={"MaxPool"}, rtol=0, atol=0)
    y, places = pool(x)

    def gradient(grad: torch.Tensor, x: torch.Tensor, places: torch.Tensor) -> Any:
        kernel, stride, padding, dilation, ceil = _complete(arguments)
        differentiate = _pooling(arguments, "_backward")
        return differentiate(grad, x, kernel, stride, padding, dilation, ceil, places)

    grad, unit = torch.randn(y.shape).to(dtype), torch.finfo(dtype).eps  # torch may add in 16 bits
    check(gradient, grad, x, places, uses={"MaxPoolGrad"}, rtol=4 * unit, atol=4 * unit)


def _complete(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    rank = len(arguments[0])
    return (*arguments, *([], [0] * rank, [1] * rank, False)[len(arguments) - 1 :])


def test_a_window_of_minus_infinity() -> None:
    """Its place is its first element, behind the padding."""
    x = torch.full((1, 2, 6, 6), -math.inf)
    check(
        lambda x: aten.max_pool2d_with_indices(x, [3, 3], [2, 2], [1, 1]),
        x,
        uses={"MaxPool"},
        rtol=0,
        atol=0,
    )


# -- batch norms --------------------------------------------------------------------------------

BATCHES = [(4, 3, 5, 6), (2, 5, 1, 1), (3, 70, 9), (2, 2, 3, 4, 5), (8, 4, 40, 40), (90, 600)]


@pytest.mark.parametrize("shape", BATCHES, ids=str)
@pytest.mark.parametrize("affine", [True, False])
def test_batch_norm(shape: tuple[int, ...], affine: bool) -> None:
    """In training, the running statistics included; and its gradient."""
    x, grad = 3 * torch.randn(shape) + 100, torch.randn(shape)
    weight, bias, mean = (torch.randn(shape[1]) for _ in range(3))
    variance = torch.rand(shape[1]) + 0.5

    def forward(x: torch.Tensor, w: Any, b: Any, m: Any, v: Any) -> Any:
        w, b = (w, b) if affine else (None, None)
        return aten._native_batch_norm_legit_functional(x, w, b, m, v, True, 0.1, 1e-5)

    uses = {"BatchNorm", "ElementwiseList"}  # the running statistics are one list
    check(forward, x, weight, bias, mean, variance, uses=uses, rtol=1e-4, atol=1e-4)
    _, saved, rstd, *_ = forward(x, weight, bias, mean, variance)

    def backward(g: Any, x: Any, w: Any, saved: Any, rstd: Any) -> Any:
        return aten.native_batch_norm_backward(
            g, x, w if affine else None, None, None, saved, rstd, True, 1e-5, [True] * 3
        )

    args = (grad, x, weight, saved, rstd)
    check(backward, *args, uses={"BatchNormGrad"}, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("shape", [(4, 3, 5, 6), (7, 300), (3, 4, 9, 9)])
def test_a_relu_behind_a_batch_norm(shape: tuple[int, ...], adds: bool) -> None:
    x, other, grad = torch.randn(shape), torch.randn(shape), torch.randn(shape)
    weight, bias = (torch.randn(shape[1]) for _ in range(2))

    def forward(x: Any, other: Any, w: Any, b: Any) -> Any:
        y, *statistics = aten._native_batch_norm_legit.no_stats(x, w, b, True, 0.1, 1e-5)
        return torch.relu(y + other if adds else y), *statistics

    check(forward, x, other, weight, bias, uses={"BatchNorm"}, rtol=1e-4, atol=1e-4)
    result, saved, rstd = forward(x, other, weight, bias)

    def backward(g: Any, y: Any, x: Any, w: Any, saved: Any, rstd: Any) -> Any:
        g = aten.threshold_backward(g, y, 0)
        read = (g, x, w, None, None, saved, rstd, True, 1e-5, [True] * 3)
        return *aten.native_batch_norm_backward(*read), *[g] * adds

    args = (grad, result, x, weight, saved, rstd)
    check(backward, *args, uses={"BatchNormGrad"}, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(4, 3, 5, 6), (7, 300), (2, 70, 1, 1), (3, 5000, 2)])
def test_batch_norm_in_inference(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """With a sum of rounded numbers and a Relu behind it; also of what is not finite."""
    x, other = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)
    b = torch.rand(shape[1])
    b[0] = torch.nan
    x[-1:, 1:2] = torch.inf

    def relu(x: torch.Tensor, other: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.relu(_normalized(x, b))

    def added(x: torch.Tensor, other: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.relu(other + _normalized(x, b))

    # Products that are fused with a sum, or not, may be rounded to neighbours.
    rtol = max(1e-5, torch.finfo(dtype).eps)
    for function in (relu, added):
        check(function, x, other, b, uses={"BatchNormInference"}, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("mask", [[True, True, True], [False, True, True], [True, False, False]])
def test_gradient_of_a_batch_norm_in_inference(mask: list[bool]) -> None:
    """The statistics are constants; what is not asked for is not computed."""
    x, grad = torch.randn(4, 3, 5, 6), torch.randn(4, 3, 5, 6)
    weight, mean, variance = torch.randn(3), torch.randn(3), torch.rand(3) + 0.5

    def backward(g: Any, x: Any, w: Any, m: Any, v: Any) -> Any:
        results = aten.native_batch_norm_backward(g, x, w, m, v, None, None, False, 1e-5, mask)
        return [r for r, asked in zip(results, mask, strict=True) if asked]

    uses = {"BatchNormGrad"}
    run, used = compiled(backward, grad, x, weight, mean, variance)
    for got, expected in zip(
        run(grad, x, weight, mean, variance),
        backward(grad, x, weight, mean, variance),
        strict=True,
    ):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
    assert used >= uses


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_batch_norm_of_what_is_not_finite(value: float) -> None:
    """Its channel is NaN, the others are not."""
    x = torch.randn(3, 4, 5, 6)
    x[1, 2, 3, 4] = value

    def forward(x: torch.Tensor) -> Any:
        return aten._native_batch_norm_legit.no_stats(x, None, None, True, 0.1, 1e-5)[0]

    check(forward, x, uses={"BatchNorm"})


# -- convolutions -------------------------------------------------------------------------------

CONVOLUTIONS: dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[Any, ...]]] = {
    "same": ((3, 4, 9, 11), (6, 4, 3, 3), ([1, 1], [1, 1], [1, 1], 1)),
    "valid": ((3, 4, 9, 11), (6, 4, 3, 2), ([1, 1], [0, 0], [1, 1], 1)),
    "strided": ((2, 3, 16, 15), (8, 3, 7, 7), ([2, 2], [3, 3], [1, 1], 1)),
    "strided, a rest": ((2, 3, 10, 12), (4, 3, 3, 3), ([4, 5], [0, 1], [1, 1], 1)),
    "dilated": ((2, 3, 12, 13), (4, 3, 3, 3), ([1, 2], [2, 3], [2, 3], 1)),
    "points": ((2, 8, 5, 6), (4, 8, 1, 1), ([1, 1], [0, 0], [1, 1], 1)),
    "strided points": ((2, 8, 6, 7), (4, 8, 1, 1), ([2, 2], [0, 0], [1, 1], 1)),
    "wide padding": ((1, 2, 4, 4), (3, 2, 3, 3), ([1, 1], [5, 2], [1, 1], 1)),
    "groups": ((2, 4, 8, 9), (6, 2, 3, 3), ([1, 1], [1, 1], [1, 1], 2)),
    "depthwise": ((2, 4, 8, 9), (4, 1, 3, 3), ([2, 1], [1, 1], [1, 1], 4)),
    "one row": ((1, 3, 1, 20), (5, 3, 1, 5), ([1, 1], [0, 2], [1, 1], 1)),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_gradients_of_convolutions(name: str) -> None:
    """Products of columns."""
    shape, kernel, (stride, padding, dilation, groups) = CONVOLUTIONS[name]
    x, w = torch.randn(shape), torch.randn(kernel)
    g = torch.randn_like(torch.conv2d(x, w, None, stride, padding, dilation, groups))

    def backward(g: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> Any:
        return aten.convolution_backward(
            g, x, w, [len(w)], stride, padding, dilation, False, [0, 0], groups, [True] * 3
        )

    run, used = compiled(backward, g, x, w)
    for got, expected in zip(run(g, x, w), backward(g, x, w), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
    assert ("Columns" in used) == (name != "points")
    steps = ("same", "valid", "one row")
    assert ("DirectConv" in used) == (name in steps)
    assert ("ColumnsGrad" in used) == (groups == 1 and name not in ("points", *steps))


def test_gradients_of_transposed_convolutions() -> None:
    """Their columns are those of the gradient."""
    x, w = torch.randn(2, 4, 5, 6), torch.randn(4, 3, 3, 3)
    g = torch.randn_like(torch.conv_transpose2d(x, w, None, 2, 1))

    def backward(g: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> Any:
        return aten.convolution_backward(
            g, x, w, [3], [2, 2], [1, 1], [1, 1], True, [0, 0], 1, [True] * 3
        )

    used = {"Columns", "DirectConv", "PaddingLeftOutGrad"}
    check(backward, g, x, w, uses=used, rtol=1e-4, atol=1e-4)


# -- rows ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(3, 5), (2, 7, 70), (150, 33), (1, 1), (4, 2, 3000)], ids=str)
@pytest.mark.parametrize("axes", [1, 2])
@pytest.mark.parametrize("affine", [True, False])
def test_layer_norm(shape: tuple[int, ...], axes: int, affine: bool) -> None:
    """Of numbers far from zero, and its gradients."""
    x, grad = torch.randn(shape) + 100, torch.randn(shape)
    inner = list(shape[-axes:])
    weight, bias = torch.randn(inner), torch.randn(inner)

    def forward(x: torch.Tensor, w: Any, b: Any) -> Any:
        w, b = (w, b) if affine else (None, None)
        return aten.native_layer_norm(x, inner, w, b, 1e-5)

    check(forward, x, weight, bias, uses={"LayerNorm"}, rtol=1e-4, atol=1e-3)
    _, mean, rstd = forward(x, weight, bias)

    def backward(g: Any, x: Any, mean: Any, rstd: Any, w: Any, b: Any) -> Any:
        w, b, mask = (w, b, [True] * 3) if affine else (None, None, [True, False, False])
        return aten.native_layer_norm_backward(g, x, inner, mean, rstd, w, b, mask)[: sum(mask)]

    args = (grad, x, mean, rstd, weight, bias)
    check(backward, *args, uses={"LayerNormGrad"}, rtol=1e-3, atol=2e-3)


def test_gradients_of_a_layer_norm_that_are_not_asked_for() -> None:
    """Those of the weight and the bias alone."""
    x, grad, weight, bias = (torch.randn(s) for s in ((4, 6), (4, 6), (6,), (6,)))
    _, mean, rstd = aten.native_layer_norm(x, [6], weight, bias, 1e-5)

    def backward(*args: Any) -> Any:
        g, x, mean, rstd, w, b = args
        mask = [False, True, True]
        return aten.native_layer_norm_backward(g, x, [6], mean, rstd, w, b, mask)[1:]

    check(backward, grad, x, mean, rstd, weight, bias, uses={"LayerNormGrad"})


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_layer_norm_of_what_is_not_finite(value: float) -> None:
    """Its row is NaN, the others are not."""
    x = torch.randn(5, 40)
    x[2, 3] = value

    def forward(x: torch.Tensor) -> Any:
        return aten.native_layer_norm(x, [40], None, None, 1e-5)[0]

    check(forward, x, uses={"LayerNorm"}, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("shape", [(3, 5), (2, 3, 4, 700), (1, 1)], ids=str)
@pytest.mark.parametrize("special", [False, True])
def test_gradient_of_a_softmax(log: bool, shape: tuple[int, ...], special: bool) -> None:
    """Along the last axis, of probabilities that are zero too."""
    name = "_log_softmax" if log else "_softmax"
    x, grad = 3 * torch.randn(shape), torch.randn(shape)
    if special:
        x[..., 0] = -math.inf
        grad.view(-1)[-1] = math.nan
    y = getattr(aten, name)(x, -1, False)

    def backward(grad: torch.Tensor, y: torch.Tensor) -> Any:
        return getattr(aten, f"{name}_backward_data")(grad, y, -1, torch.float32)

    check(backward, grad, y, uses={"SoftmaxGrad"})


@pytest.mark.parametrize("axis", [0, 1])
def test_gradient_of_a_softmax_along_another_axis(axis: int) -> None:
    """It has no kernel."""
    y, grad = torch.randn(3, 4, 5).softmax(axis), torch.randn(3, 4, 5)

    def backward(grad: torch.Tensor, y: torch.Tensor) -> Any:
        return aten._softmax_backward_data(grad, y, axis, torch.float32)

    run, used = compiled(backward, grad, y)
    torch.testing.assert_close(run(grad, y)[0], backward(grad, y))
    assert "SoftmaxGrad" not in used


@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("shape", [(3,), (4, 700), (3, 5000), ()], ids=str)
def test_gradient_of_a_gelu(shape: tuple[int, ...], approximate: str) -> None:
    """Also of what is large, or not finite."""
    x, grad = 4 * torch.randn(shape), torch.randn(shape)
    if len(shape) == 2:
        special = [0.0, -0.0, 1e-30, 5.0, -5.0, 20.0, -20.0, 1e30, math.inf, -math.inf, math.nan]
        x[0, : len(special)] = torch.tensor(special)

    def backward(grad: torch.Tensor, x: torch.Tensor) -> Any:
        return aten.gelu_backward(grad, x, approximate=approximate)

    # torch subtracts the square of a tangent near one from one: it is a few millionths off itself
    atol = 1e-6 if approximate == "none" else 5e-6
    check(backward, grad, x, uses={"GeluGrad"}, rtol=2e-6, atol=atol)


def test_gradient_of_a_gelu_with_a_tangent() -> None:
    """Closer to the gradient in float64 than torch's in float32."""
    x, grad = torch.linspace(-8, 8, 4001), torch.ones(4001)

    def backward(grad: torch.Tensor, x: torch.Tensor) -> Any:
        return aten.gelu_backward(grad, x, approximate="tanh")

    run, used = compiled(backward, grad, x)
    exact = backward(grad.double(), x.double())
    torch.testing.assert_close(run(grad, x)[0].double(), exact, rtol=1e-6, atol=2e-7)
    assert used == {"GeluGrad"}


def _loss(
    logits: torch.Tensor, places: torch.Tensor, grad: torch.Tensor, reduction: int
) -> torch.Tensor:
    """The gradient of a cross entropy, in the operators that its graph has."""
    y = aten._log_softmax(logits, 1, False)
    total = (places != -100).sum().to(torch.float32)
    of_y = aten.nll_loss_backward(grad, y, places, None, reduction, -100, total)
    return aten._log_softmax_backward_data(of_y, y, 1, torch.float32)


@pytest.mark.parametrize("reduction", [0, 1, 2], ids=["none", "mean", "sum"])
@pytest.mark.parametrize("ignored", [False, True])
@pytest.mark.parametrize("shape", [(1, 1), (6, 5), (300, 70), (3, 5000)], ids=str)
def test_gradient_of_a_cross_entropy(
    shape: tuple[int, int], ignored: bool, reduction: int
) -> None:
    """Of rows that count and of rows that do not."""
    logits, places = 3 * torch.randn(shape), torch.randint(0, shape[1], shape[:1])
    if ignored:
        places[: shape[0] // 2] = -100
    grad = torch.randn(shape[:1] if reduction == 0 else ())

    def backward(*args: Any) -> Any:
        return _loss(*args, reduction)

    check(backward, logits, places, grad, uses={"CrossEntropyGrad"}, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("slope", [0.0, 2.0, math.inf, math.nan])
def test_gradient_of_a_cross_entropy_that_is_not_finite(slope: float) -> None:
    """As torch's own kernels have it: rows of NaN, numbers without probability, slopes."""
    logits, places = torch.randn(4, 9), torch.tensor([1, 0, -100, 3])
    logits[0, 0] = logits[1, 2] = -math.inf
    logits[2, 1], logits[3, 0] = math.nan, math.nan

    def backward(*args: Any) -> Any:
        return _loss(*args, 0)

    grad = torch.tensor([slope, 0.0, slope, 1.0])
    run, used = compiled(backward, logits, places, grad)
    y = aten._log_softmax(logits, 1, False)
    of_y = aten.nll_loss_backward(grad, y, places, None, 0, -100, torch.tensor(3.0))
    expected = aten._log_softmax_backward_data(of_y, y, 1, torch.float32)
    torch.testing.assert_close(run(logits, places, grad)[0], expected, equal_nan=True)
    assert used == {"CrossEntropyGrad"}


# -- where they are not used --------------------------------------------------------------------


def pool_and_norm(x: torch.Tensor) -> Any:
    y = aten.max_pool2d_with_indices(x, [2, 2])
    return *y, aten._native_batch_norm_legit.no_stats(x, None, None, True, 0.1, 1e-5)[0]


@pytest.mark.parametrize("patterns", ["default", "default+onnxruntime", ALL + "-experimental"])
def test_other_sets_have_none(patterns: str) -> None:
    """Their models are of standard operators, or of onnxruntime's."""
    x = torch.randn(2, 3, 8, 8)
    run, used = compiled(pool_and_norm, x, patterns=patterns)
    for got, expected in zip(run(x), pool_and_norm(x), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
    assert not {"MaxPool", "BatchNorm"} & used


def test_other_types_have_none() -> None:
    """The kernels are those of float32."""
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    run, used = compiled(pool_and_norm, x)
    for got, expected in zip(run(x), pool_and_norm(x), strict=True):
        torch.testing.assert_close(got, expected)
    assert not {"MaxPool", "BatchNorm"} & used


def test_sizes_may_be_symbols() -> None:
    """One model serves all sizes."""
    x = torch.randn(2, 3, 8, 10)
    run, used = compiled(pool_and_norm, x, mode="symbolic")
    for shape in ((2, 3, 8, 10), (5, 3, 7, 13)):
        x = torch.randn(shape)
        for got, expected in zip(run(x), pool_and_norm(x), strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
    assert used >= {"MaxPool", "BatchNorm"}


@pytest.mark.parametrize("stride", [1, 2])
def test_sizes_of_convolutions_may_be_symbols(stride: int) -> None:
    """One model of the gradients serves all sizes; those of the kernel are known."""

    def weight() -> torch.Tensor:
        return torch.arange(108.0).reshape(4, 3, 3, 3).sin()

    def backward(g: torch.Tensor, x: torch.Tensor) -> Any:
        return aten.convolution_backward(
            g, x, weight(), [4], [stride] * 2, [1, 1], [1, 1], False, [0, 0], 1, [True] * 3
        )

    def arguments(*shape: int) -> tuple[torch.Tensor, ...]:
        x = torch.randn(shape)
        return torch.randn_like(torch.conv2d(x, weight(), None, stride, 1)), x

    args = arguments(2, 3, 8, 10)
    run, used = compiled(backward, *args, mode="symbolic")
    for given in (args, arguments(3, 3, 12, 7), arguments(5, 3, 9, 14)):
        for got, expected in zip(run(*given), backward(*given), strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
    of_input = {"DirectConv"} if stride == 1 else {"ColumnsGrad"}
    assert used == {"Columns", "PaddingLeftOutGrad", *of_input}


def test_sizes_of_rows_may_be_symbols() -> None:
    """Layer norms, softmax and Gelu."""

    def backward(g: torch.Tensor, x: torch.Tensor) -> Any:
        y, mean, rstd = aten.native_layer_norm(x, x.shape[-1:], None, None, 1e-5)
        mask = [True, False, False]
        of_x = aten.native_layer_norm_backward(g, x, x.shape[-1:], mean, rstd, None, None, mask)[0]
        p = aten._softmax(y, -1, False)
        softmax = aten._softmax_backward_data(of_x, p, -1, torch.float32)
        return [softmax, aten.gelu_backward(softmax, x), x.sum(0), x.sum(-1)]

    run, used = compiled(backward, torch.randn(4, 5, 9), torch.randn(4, 5, 9), mode="symbolic")
    for shape in ((4, 5, 9), (3, 70, 20), (2, 2, 700)):
        g, x = torch.randn(shape), torch.randn(shape)
        for got, expected in zip(run(g, x), backward(g, x), strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
    assert used == {"LayerNorm", "LayerNormGrad", "SoftmaxGrad", "GeluGrad"}


def test_an_empty_batch_has_none() -> None:
    """It is left to the nodes that are known to serve it."""
    x = torch.randn(0, 3, 8, 8)
    check(lambda x: aten.max_pool2d_with_indices(x, [2, 2])[0], x, uses=set())


@pytest.fixture(name="no_compiler")
def hide_the_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Iterator[None]:
    monkeypatch.setattr(kernel_build, "BUILT", tmp_path / "none")
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setenv("DORT_CACHE_DIR", str(tmp_path))
    for function in (kernel_library.kernel_library, custom_kernels.is_available):
        function.cache_clear()
    yield
    for function in (kernel_library.kernel_library, custom_kernels.is_available):
        function.cache_clear()


@pytest.mark.usefixtures("no_compiler")
def test_without_a_compiler_it_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """And the model is made of other operators."""
    x = torch.randn(2, 3, 8, 8)
    check(lambda x: aten.max_pool2d_with_indices(x, [2, 2]), x, uses=set(), rtol=0, atol=0)
    assert "no C++ compiler" in caplog.text


def test_who_may_use_them() -> None:
    """The options say it: the set, and the processor."""
    assert uses_own_kernels(OptimizationOptions(patterns=ALL))
    assert not uses_own_kernels(OptimizationOptions())
    assert not uses_own_kernels(OptimizationOptions(patterns=ALL, processor="CUDA"))


def test_what_has_a_kernel_is_not_placed_in_torch() -> None:
    """Large tensors go to torch when our kernel is not there."""
    x, grad = torch.randn(8, 16, 64, 64), torch.randn(8, 16, 32, 32)
    _, places = aten.max_pool2d_with_indices(x, [2, 2])

    def backward(grad: torch.Tensor, x: torch.Tensor, places: torch.Tensor) -> Any:
        return aten.max_pool2d_with_indices_backward(
            grad, x, [2, 2], [2, 2], [0, 0], [1, 1], False, places
        )

    check(backward, grad, x, places, uses={"MaxPoolGrad"})
    check(backward, grad, x, places, uses=set(), placement={"*": "torch"})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_gradients_stay_in_the_model(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """However large they are, where our kernels compute with their numbers: no cut."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)

    def backward(grad: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        grad = aten.gelu_backward(grad, y)
        grad = aten.threshold_backward(aten.tanh_backward(grad, y), y, 0.01)
        return aten._softmax_backward_data(grad, y, -1, dtype)

    grad, y = torch.randn(512, 1024).to(dtype), torch.rand(512, 1024).to(dtype)
    # Gelu differs in the last place, of numbers that cancel.
    tolerance = 1e-4 if dtype == torch.float32 else 16 * torch.finfo(dtype).eps
    used = {"GeluGrad", "SoftmaxGrad"}
    check(backward, grad, y, uses=used, rtol=tolerance, atol=tolerance)


def _many(rank: int) -> torch.Tensor:
    return torch.randn([2, 3, *[1] * (rank - 4), 4, 6])


@pytest.mark.parametrize("rank", [12, 13, 16])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: aten.native_layer_norm(x, [6], None, None, 1e-5)[0],
        lambda x: aten._softmax_backward_data(x, x, -1, torch.float32),
        lambda x: (x * x[0] + x).sum(-1),
        lambda x: x.sum(0),
        lambda x: torch.relu(x * 2 - x).transpose(0, 1).contiguous(),
        lambda x: x.half().transpose(0, 2).contiguous().float(),
        lambda x: torch.zeros_like(x).index_put((torch.tensor([0, 0]),), x[:1], accumulate=True),
    ],
)
def test_kernels_are_for_twelve_axes(function: Callable[..., Any], rank: int) -> None:
    """Beyond, the model is made without them: it does not fail at its first call."""
    x = _many(rank)
    call, _ = compiled(function, x)
    (got,) = call(x)
    torch.testing.assert_close(got, function(x), rtol=1e-5, atol=1e-5)
