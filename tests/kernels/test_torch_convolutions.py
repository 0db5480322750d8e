"""Convolutions by torch's kernels as operators of a session, and their gradients."""

from __future__ import annotations

from typing import Any

import onnxruntime
import pytest
import torch

from dort_rewriter import OrtBackend
from dort_rewriter.errors import ExecutionError
from dort_rewriter.kernels.torch_library import has_function, works_alone
from dort_rewriter.runtime.session import create_session
from tests.kernels.test_parted_kernels import session
from tests.kernels.test_torch_kernels import model_of, run, run_session

TYPES = [torch.bfloat16, torch.float16, torch.float32]

# channels in and out, groups, transposed, stride, padding, dilation, more rows behind
CASES = {
    "plain": (8, 6, 1, False, 1, 1, 1, 0),
    "of groups": (8, 12, 4, False, 2, 0, 1, 0),
    "a filter for each channel": (8, 8, 8, False, 1, 1, 1, 0),
    "with gaps": (8, 6, 1, False, 2, 2, 2, 0),
    "transposed": (8, 6, 1, True, 2, 1, 1, 1),
    "transposed, of groups": (8, 6, 2, True, 3, 0, 1, 2),
}


def given(case: str, rank: int, dtype: torch.dtype, batch: int = 3) -> list[torch.Tensor]:
    """An image, weights and a bias."""
    read, made, groups, transposed, *_ = CASES[case]
    channels = (read, made // groups) if transposed else (made, read // groups)
    shapes = (batch, read, *[9] * rank), (*channels, *[3] * rank), (made,)
    return [torch.randn(shape).to(dtype) for shape in shapes]


def windows(case: str, rank: int) -> dict[str, Any]:
    _, _, groups, transposed, stride, padding, dilation, more = CASES[case]
    numbers = {"stride": stride, "padding": padding, "dilation": dilation, "output_padding": more}
    lists = {name: [number] * rank for name, number in numbers.items()}
    return {**lists, "transposed": int(transposed), "groups": groups}


def by_torch(case: str, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None) -> torch.Tensor:
    how = windows(case, x.dim() - 2)
    return torch.ops.aten.convolution(
        x, w, b, how["stride"], how["padding"], how["dilation"], bool(how["transposed"]),
        how["output_padding"], how["groups"],
    )  # fmt: skip


def gradients(case: str, y: torch.Tensor, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
    leaves = [t.clone().requires_grad_() for t in given]
    return torch.autograd.grad(by_torch(case, *leaves), leaves, y)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def assert_near(got: torch.Tensor, expected: torch.Tensor) -> None:
    """The sums may be added up in another order: a rounding of the largest of them."""
    assert got.dtype == expected.dtype
    limit = 1e-5 if got.dtype == torch.float32 else 1e-2
    scale = max(1.0, expected.abs().max().item()) if expected.numel() else 1.0
    torch.testing.assert_close(
        got.float() / scale, expected.float() / scale, rtol=0, atol=limit, check_stride=False
    )


def test_torch_has_them() -> None:
    """On all versions that are tested."""
    assert has_function("aoti_torch_cpu_convolution")
    assert has_function("aoti_torch_cpu_convolution_backward")


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("case", CASES)
def test_a_convolution_is_that_of_eager_mode(case: str, dtype: torch.dtype, rank: int) -> None:
    """With a bias and without one; and its gradients."""
    x, w, b = given(case, rank, dtype)
    how = windows(case, rank)
    (got,) = run(model_of("convolution", [dtype] * 2, [dtype], **how), x, w)
    assert_near(got, by_torch(case, x, w, None).contiguous())
    (got,) = run(model_of("convolution", [dtype] * 3, [dtype], **how), x, w, b)
    y = by_torch(case, x, w, b).contiguous()
    assert_near(got, y)
    made = run(model_of("convolution_backward", [dtype] * 3, [dtype] * 3, **how), y, x, w)
    for got, expected in zip(made, gradients(case, y, x, w, b), strict=True):
        assert_near(got, expected.contiguous())


@pytest.mark.parametrize("dtype", TYPES)
def test_any_order_of_axes(dtype: torch.dtype) -> None:
    """Channels last, and weights transposed: read and written as they lie."""
    last, first, turned = [0, 2, 3, 1], [0, 3, 1, 2], [1, 0, 2, 3]
    x, w, b = given("plain", 2, dtype)
    how = windows("plain", 2)
    y = by_torch("plain", x, w, b)
    model = model_of(
        "convolution", [dtype] * 3, [dtype], perm0=first, perm1=turned, order0=last, **how
    )
    (got,) = run(model, x.permute(last), w.permute(turned), b)
    assert_near(got, y.permute(last).contiguous())
    orders = {"perm0": first, "perm1": first, "perm2": turned, "order0": last, "order1": turned}
    model = model_of("convolution_backward", [dtype] * 3, [dtype] * 3, **orders, **how)
    made = run(model, y.permute(last), x.permute(last), w.permute(turned))
    of_x, of_w, of_b = gradients("plain", y, x, w, b)
    for got, expected in zip(made, (of_x.permute(last), of_w.permute(turned), of_b), strict=True):
        assert_near(got, expected.contiguous())


@pytest.mark.skipif(not works_alone(), reason="this torch was built without MKL")
@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("dtype", TYPES[::2])
@pytest.mark.parametrize("case", CASES)
def test_threads_share_it(case: str, dtype: torch.dtype, batch: int, threads: int) -> None:
    """By pictures, or by channels of results; gradients of images and of weights apart."""
    read, made, groups, transposed, *_ = CASES[case]
    how = windows(case, 2)
    x = torch.randn(batch, 16 * read, 20, 20).to(dtype)
    channels = (16 * read, 16 * made // groups) if transposed else (16 * made, 16 * read // groups)
    w = (torch.randn(*channels, 3, 3) / 30).to(dtype)
    b = torch.randn(16 * made).to(dtype)
    (got,) = run_session(session("convolution", [dtype] * 3, [dtype], threads, **how), x, w, b)
    y = by_torch(case, x, w, b).contiguous()
    assert_near(got, y)
    back = session("convolution_backward", [dtype] * 3, [dtype] * 3, threads, **how)
    for got, expected in zip(
        run_session(back, y / 100, x, w), gradients(case, y / 100, x, w, b), strict=True
    ):
        assert_near(got, expected)


@pytest.mark.skipif(not works_alone(), reason="this torch was built without MKL")
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("case", ["plain", "of groups", "transposed"])
def test_threads_share_weights_that_are_larger_than_the_pictures(case: str, bias: bool) -> None:
    """By channels, however many pictures there are; groups by pictures."""
    how, (read, made, groups, transposed, *_) = windows(case, 2), CASES[case]
    x = torch.randn(5, 32 * read, 3, 3)
    channels = (32 * read, 32 * made // groups) if transposed else (32 * made, 32 * read // groups)
    w, b = torch.randn(*channels, 3, 3) / 60, torch.randn(32 * made)
    given = [x, w, b] if bias else [x, w]
    model = session("convolution", [torch.float32] * len(given), [torch.float32], 3, **how)
    (got,) = run_session(model, *given)
    y = by_torch(case, x, w, b if bias else None)
    assert_near(got, y)
    results = [torch.float32] * len(given)
    back = session("convolution_backward", [torch.float32] * 3, results, 3, **how)
    y = y.contiguous() / 100
    for got, expected in zip(
        run_session(back, y, x, w), gradients(case, y, x, w, b)[: len(given)], strict=True
    ):
        assert_near(got, expected)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 1), (1, 2), (0, 2)])
def test_what_nobody_reads_is_not_made(wanted: tuple[int, ...], threads: int) -> None:
    """Of the gradients, whatever others are read."""
    x, w, b = given("plain", 2, torch.float32, batch=40)
    y = by_torch("plain", x, w, b)
    model = model_of("convolution_backward", [x.dtype] * 3, [x.dtype] * 3, **windows("plain", 2))
    (node,) = model.graph.node
    outputs = [o for i, o in enumerate(model.graph.output) if i in wanted]
    for i in range(3):
        node.output[i] = node.output[i] if i in wanted else ""
    del model.graph.output[:]
    model.graph.output.extend(outputs)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    made = run_session(create_session(model, options=options).ort, y, x, w)
    expected = gradients("plain", y, x, w, b)
    for got, i in zip(made, wanted, strict=True):
        assert_near(got, expected[i])


def test_of_no_picture() -> None:
    """There is no result; the gradients of weights are zero."""
    x, w, b = given("plain", 2, torch.float32, batch=0)
    how = windows("plain", 2)
    (y,) = run(model_of("convolution", [x.dtype] * 3, [x.dtype], **how), x, w, b)
    assert y.shape == (0, 6, 9, 9)
    of_x, of_w, of_b = run(
        model_of("convolution_backward", [x.dtype] * 3, [x.dtype] * 3, **how), y, x, w
    )
    assert of_x.shape == x.shape
    assert of_w.shape == w.shape
    assert not of_w.any()
    assert not of_b.any()


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("place", [0, -1, 5])
def test_what_multiplied_the_padding_is_made_again(place: int, threads: int) -> None:
    """Where the first or the last number of a filter is NaN; else it stands as it was made."""
    x, w, b = given("plain", 2, torch.float32)
    how, types = windows("plain", 2), [torch.float32] * 4
    expected = by_torch("plain", x, w, b)
    made = torch.arange(float(expected.numel())).view(expected.shape) - 100
    made[0, 4].view(-1)[place] = torch.nan
    right = made if place == 5 else expected
    check = session("PaddingLeftOut", types, types[:1], threads, **how)
    (got,) = run_session(check, made.clone(), x, w, b)
    torch.testing.assert_close(got, right, equal_nan=True)
    check = session("PaddingLeftOut", types[1:], types[:1], threads, relu=1, **how)
    (got,) = run_session(check, made.clone(), x, w)
    again = by_torch("plain", x, w, None).relu()
    torch.testing.assert_close(got, made if place == 5 else again, equal_nan=True)


@pytest.mark.parametrize("place", [0, -1, 5])
@pytest.mark.parametrize("case", ["plain", "of groups", "transposed"])
def test_gradients_of_weights_are_made_again(case: str, place: int) -> None:
    x, w, b = given(case, 2, torch.float32)
    y = by_torch(case, x, w, b)
    _, expected, _ = gradients(case, y, x, w, b)
    made = torch.ones_like(w)
    made[3, 0].view(-1)[place] = torch.nan
    how, types = windows(case, 2), [torch.float32] * 4
    if case == "of groups":
        how["padding"] = [0, 0]
    (got,) = run(model_of("PaddingLeftOutGrad", types, types[:1], **how), made.clone(), y, x, w)
    torch.testing.assert_close(got, made if place == 5 else expected, equal_nan=True)


@pytest.mark.parametrize("name", ["PaddingLeftOut", "PaddingLeftOutGrad"])
def test_what_was_made_has_the_sizes_of_a_result(name: str) -> None:
    x, w, b = given("plain", 2, torch.float32)
    y = by_torch("plain", x, w, b)
    others = [y, x, w] if name.endswith("Grad") else [x, w, b]
    model = model_of(name, [torch.float32] * 4, [torch.float32], **windows("plain", 2))
    for made in (torch.ones(3, 6, 8, 9), torch.ones(6), torch.ones(0, 6, 9, 9)):
        with pytest.raises(Exception, match="the sizes of what was made do not fit"):
            run(model, made, *others)


REFUSED: dict[str, dict[str, Any]] = {
    "no stride": {"stride": [0, 1]},
    "other axes": {"padding": [1]},
    "four axes": dict.fromkeys(("stride", "padding", "dilation", "output_padding"), [1] * 4),
    "less than no padding": {"padding": [-1, 0]},
    "no groups": {"groups": 0},
    "a flag of two": {"transposed": 2},
    "huge numbers": {"dilation": [1 << 40, 1]},
    "a padding of which oneDNN makes no code": {"padding": [0, 16_384]},
    "a stride of which oneDNN makes no code": {"stride": [4096, 1]},
}


@pytest.mark.parametrize("name", ["convolution", "convolution_backward"])
@pytest.mark.parametrize("case", REFUSED)
def test_a_node_that_nobody_wrote_is_refused(case: str, name: str) -> None:
    """When its session is built; torch's own convolution ends the process for some."""
    model = model_of(
        name, [torch.float32] * 3, [torch.float32], **{**windows("plain", 2), **REFUSED[case]}
    )
    with pytest.raises(ExecutionError, match=r"out of its range|one to three axes"):
        create_session(model)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_kernel_is_not_chosen_for_numbers_that_it_refuses(dtype: torch.dtype) -> None:
    x, w = torch.randn(1, 1, 8).to(dtype), torch.randn(1, 1, 3).to(dtype)
    for how in ({"padding": 9000, "dilation": 1}, {"padding": 8192, "dilation": 8193}):
        torch._dynamo.reset()
        compiled = torch.compile(
            lambda x, w, how=how: torch.conv1d(x, w, **how),
            backend=OrtBackend({"optimization": {"patterns": "default+onnxruntime+kernels"}}),
        )
        torch.testing.assert_close(compiled(x, w), torch.conv1d(x, w, **how))


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64])
def test_other_types_are_refused(dtype: torch.dtype) -> None:
    with pytest.raises(ExecutionError, match="convolutions are of float"):
        create_session(model_of("convolution", [dtype] * 2, [dtype], **windows("plain", 2)))


SIZES = {
    "channels": ((2, 7, 9, 9), (6, 8, 3, 3), (6,), "channels"),
    "axes": ((2, 8, 9), (6, 8, 3, 3), (6,), "other axes"),
    "a large window": ((2, 8, 4, 4), (6, 8, 7, 3), (6,), "larger than the image"),
    "no window": ((2, 8, 4, 4), (6, 8, 0, 3), (6,), "larger than the image"),
    "the bias": ((2, 8, 9, 9), (6, 8, 3, 3), (5,), "do not fit"),
}


@pytest.mark.parametrize("case", SIZES)
def test_sizes_that_do_not_fit_are_refused(case: str) -> None:
    """Before torch reads anything."""
    x, w, b, words = SIZES[case]
    how = windows("plain", 2)
    model = model_of("convolution", [torch.float32] * 3, [torch.float32], **how)
    with pytest.raises(Exception, match=words):
        run(model, torch.ones(x), torch.ones(w), torch.ones(b))
    if case != "the bias":
        return
    model = model_of("convolution_backward", [torch.float32] * 3, [torch.float32] * 3, **how)
    with pytest.raises(Exception, match=words):
        run(model, torch.ones(2, 6, 9, 8), torch.ones(x), torch.ones(w))
