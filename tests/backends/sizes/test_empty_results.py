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


OF_NOTHING = {
    "sum": lambda x: x.sum(-1),
    "sum kept": lambda x: x.sum(1, keepdim=True),
    "mean of the last": lambda x: x.mean(-1),
    "mean of nothing": lambda x: x.mean(0),
    "mean of what was computed": lambda x: (x.abs() + 1).reciprocal().mean(),
    "what is set of such a mean": lambda x: (x.abs() + 1).reciprocal().mean().count_nonzero(),
    "var": lambda x: x.var(0, unbiased=False),
    "amax": lambda x: x.amax(-1),
    "max": lambda x: x.max(-1).values,
    "argmax": lambda x: x.argmax(-1),
    "logsumexp": lambda x: x.logsumexp(0),
    "norm": lambda x: x.norm(dim=-1),
    "prod": lambda x: x.prod(-1),
    "all": lambda x: (x > 0).all(-1),
    "any of nothing": lambda x: (x > 0).any(0),
    "cdist": lambda x: torch.cdist(x, x + 1),
    "topk": lambda x: x.topk(1, -1).values,
    "sort": lambda x: x.sort(-1).values,
    "cumsum": lambda x: x.cumsum(-1),
    "softmax": lambda x: x.softmax(-1),
    "layer norm": lambda x: torch.nn.functional.layer_norm(x, (3,)),
    "product": lambda x: x @ x.mT,
    "product of nothing": lambda x: x.permute(1, 2, 0) @ x.permute(1, 0, 2),
    "median": lambda x: x.median() + x.sum(-1).sum(0),
    "nanmedian": lambda x: x.nanmedian() + x.sum(-1).sum(0),
    "count": lambda x: x.count_nonzero(-1),
    "gather": lambda x: x.gather(-1, torch.zeros(0, 2, 1, dtype=torch.int64)),
    "flip": lambda x: x.flip(-1),
    "mode": lambda x: x.mode(-1).values,
    "cat": lambda x: torch.cat([x, x], 1).sum(-1),
}


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.parametrize("of", OF_NOTHING)
def test_of_nothing_beside_a_symbolic_size(of: str) -> None:
    """One size is zero, another is known at run time."""
    function = OF_NOTHING[of]
    compiled, _ = compile_strictly(lambda x: function(x) * 1, dynamic=True, fallback=True)
    for n in (4, 6):
        x = torch.zeros(0, n, 3)
        got, expected = compiled(x), function(x) * 1
        torch.testing.assert_close(got, expected, equal_nan=True)


OVER_COUNTED = {
    "product": lambda x: x @ x.mT,
    "linear": lambda x: torch.nn.functional.linear(x, x, x.new_ones(len(x))),
    "addmm": lambda x: torch.addmm(x.new_ones(1), x, x.mT, beta=2, alpha=3),
    "batches": lambda x: x.expand(2, -1, -1) @ x.mT.expand(2, -1, -1),
    "vector": lambda x: x @ x[0],
    "integers": lambda x: x.to(torch.int8) @ x.to(torch.int8).mT,
}


@pytest.mark.parametrize("over", OVER_COUNTED)
def test_products_over_counted_elements(over: str, caplog: pytest.LogCaptureFixture) -> None:
    """The size that is summed over is that of a result, and zero in some calls."""

    def function(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return OVER_COUNTED[over](x[:, mask.nonzero()[:, 0]]) + 0

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled, _ = compile_strictly(function, fallback=True)  # torch asserts something itself
        x = torch.full((3, 5), 7.0)
        for count in (5, 0, 3, 0):
            mask = torch.arange(5) < count
            torch.testing.assert_close(compiled(x, mask), function(x, mask))
    assert "runs in torch from now on" not in caplog.text


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_strides_of_what_is_empty(dynamic: bool) -> None:
    """onnxruntime 1.32 says that they are 0."""
    compiled, _ = compile_strictly(lambda x: (x * 2, x.bfloat16() + 1, x > 0), dynamic=dynamic)
    for rows in (4, 0):
        for result in compiled(torch.randn(rows, 3, 2)):
            assert result.stride() == (6, 2, 1)


@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear", "bicubic", "area"])
def test_a_batch_of_nothing_is_resized(mode: str, grad: bool) -> None:
    """torch's meta kernels of two of these modes refuse it, its own kernels do not."""

    def resized(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.interpolate(x, scale_factor=2, mode=mode) * 3

    x = torch.randn(0, 3, 4, 5, requires_grad=grad)
    compiled, _ = compile_strictly(resized)
    got = compiled(x)
    assert (got.shape, got.dtype) == ((0, 3, 8, 10), torch.float32)
    if grad:
        got.sum().backward()
        assert x.grad is not None
        assert x.grad.shape == x.shape


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear", "bicubic"])
def test_a_batch_that_may_be_empty_is_resized(mode: str) -> None:
    """Sizes vary, and the first call's batch has nothing."""

    def resized(x: torch.Tensor) -> torch.Tensor:
        rest = x.split(x.shape[0] // 2)[1][1:]
        return torch.nn.functional.interpolate(rest, scale_factor=2, mode=mode) * 3

    compiled, _ = compile_strictly(resized, dynamic=True)
    for rows in (2, 6, 8):
        x = torch.randn(rows, 3, 4, 5, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        got, expected = compiled(x), resized(y)
        torch.testing.assert_close(got, expected)
        got.sum().backward()
        expected.sum().backward()
        torch.testing.assert_close(x.grad, y.grad)


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.bfloat16])
def test_a_mask_that_selects_nothing(dtype: torch.dtype, accumulate: bool) -> None:
    """Tokens that no expert takes."""

    def put(x: torch.Tensor, mask: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return x.clone().index_put_((mask,), rows, accumulate)

    compiled, _ = compile_strictly(put, dynamic=True)
    x = torch.arange(12).reshape(4, 3).to(dtype)
    for places in ([], [2], [0, 3], [0, 1, 2], []):
        mask = torch.zeros(4, dtype=torch.bool)
        mask[places] = True
        rows = torch.ones(len(places), 3, dtype=dtype)
        torch.testing.assert_close(compiled(x, mask, rows), put(x, mask, rows))
    for source in (torch.ones(12, dtype=dtype), torch.ones(0, dtype=dtype)):
        compiled, _ = compile_strictly(torch.masked_scatter, dynamic=True)
        mask = torch.zeros(4, 3, dtype=torch.bool)
        torch.testing.assert_close(compiled(x, mask, source), x)


@pytest.mark.parametrize("second", [torch.float16, torch.float32, torch.float64, torch.bool])
@pytest.mark.parametrize("first", [torch.bool, torch.int8, torch.float16, torch.float32])
@pytest.mark.parametrize("dynamic", [False, True])
def test_batches_of_products_of_two_types_over_nothing(
    first: torch.dtype, second: torch.dtype, dynamic: bool
) -> None:
    """torch compares their types only where there is something to multiply."""
    x, y = torch.zeros(4, 2, 0, dtype=first), torch.zeros(4, 0, 3, dtype=second)
    try:
        with torch._subclasses.FakeTensorMode() as mode:
            torch.bmm(mode.from_tensor(x), mode.from_tensor(y))
    except RuntimeError:  # torch 2.13
        pytest.skip("no compiler traces it on this torch")
    compiled, _ = compile_strictly(torch.bmm, dynamic=dynamic)
    torch.testing.assert_close(compiled(x, y), torch.bmm(x, y))


@pytest.mark.parametrize("batch", [0, 2])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("kind", ["conv1d", "conv2d", "conv3d", "conv_transpose1d"])
@pytest.mark.parametrize("varies", ["images", "channels"])
def test_gradients_of_convolutions_of_varying_sizes(
    varies: str, kind: str, groups: int, batch: int
) -> None:
    """Of an empty batch too, where a sum over it has no size."""
    convolve, rank = getattr(torch.nn.functional, kind), int(kind[-2])
    compiled, _ = compile_strictly(lambda x, w: convolve(x, w, groups=groups))
    for more in range(3):
        image, channels = (4 + more, 4) if varies == "images" else (4, 4 + more * groups)
        x = torch.randn(batch, channels, *[image] * rank, requires_grad=True)
        w = torch.randn(channels, channels // groups, *[3] * rank, requires_grad=True)
        expected = torch.autograd.grad(convolve(x, w, groups=groups).square().sum(), (x, w))
        got = torch.autograd.grad(compiled(x, w).square().sum(), (x, w))
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-3)
