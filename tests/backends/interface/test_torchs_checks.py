"""What torch's kernels refuse before they compute raises as in eager mode, or runs as there."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

import onnxruntime
import pytest
import torch
import torch.nn.functional as F

from dort_rewriter import OrtBackend, to_onnx
from tests.backends.memory.aliases import Program, check
from tests.backends.ways import HAS_ORT_BACKEND, compile_strictly

Tensor = torch.Tensor

REFUSED: dict[str, Callable[[Tensor], Any]] = {
    "probability above 1": lambda x: F.binary_cross_entropy(x * 0 + 2, x * 0),
    "probability below 0": lambda x: F.binary_cross_entropy(x * 0 - 0.1, x * 0, reduction="sum"),
    "target above 1": lambda x: F.binary_cross_entropy(x.sigmoid(), x * 0 + 3),
    "no probability": lambda x: F.binary_cross_entropy(x / 0 - x / 0, x * 0),
    "smooth_l1_loss": lambda x: F.smooth_l1_loss(x * 2, x, beta=-1.0),
    "conv_transpose1d": lambda x: F.conv_transpose1d(
        x[None] * 2, torch.ones(4, 1, 3), stride=2, output_padding=4
    ),
    "conv_transpose2d": lambda x: F.conv_transpose2d(
        x[None, :, None] * 2, torch.ones(4, 1, 1, 3), output_padding=1
    ),
    "class below 0": lambda x: F.one_hot((x * 0 - 1).long(), 3),
    "class of too few": lambda x: F.one_hot((x * 0 + 3).long(), 3) * x[..., None],
    "no inverse": lambda x: torch.linalg.inv(x[:, :4] * 0) + 1,
    "no solution": lambda x: torch.linalg.solve(x[:, :4] * 0, x),
    "not positive": lambda x: torch.linalg.cholesky(x[:, :4] * 0 - torch.eye(4)).sin(),
    "no factors": lambda x: torch.linalg.lu_factor(x[:, :4] * 0)[0],
    "no values": lambda x: torch.linalg.eigh(x[:, :4] / 0)[0],
    "max": lambda x: (x * 2)[:0].max(),
    "min of integers": lambda x: (x * 2)[:0].long().min(),
    "celu": lambda x: F.celu(x * 2, 0.0),
    "bucketize": lambda x: torch.bucketize(x * 2, x),
    "True - x": lambda x: True - x * 2,
    "x - True": lambda x: x * 2 - True,
    "bags": lambda x: F.embedding_bag(
        torch.tensor([0, 1, 1, 2]), x * 2, torch.tensor([1, 2]), mode="sum"
    ),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", REFUSED)
def test_the_error_is_that_of_torch(
    name: str, dynamic: bool, caplog: pytest.LogCaptureFixture
) -> None:
    program, x = REFUSED[name], torch.randn(4, 6)
    with pytest.raises((RuntimeError, IndexError)) as expected:
        program(x)
    compiled = torch.compile(program, backend=OrtBackend(), dynamic=dynamic)
    for _ in range(2):
        with pytest.raises(expected.type) as got:
            compiled(x)
        if str(expected.value).splitlines()[0] not in str(got.value):  # Dynamo's own words
            torch._dynamo.reset()
            with pytest.raises(expected.type, match=re.escape(str(got.value))):
                torch.compile(program, backend="eager", dynamic=dynamic)(x)
    assert "from now on" not in caplog.text


EXTREMA: dict[str, Callable[[Tensor], Any]] = {
    "max": lambda x: x[x > 5].max(),
    "min of integers": lambda x: x[x > 5].long().min(),
    "amax": lambda x: x[x[:, 0] > 5].amax(0),
    "amin kept": lambda x: x[x[:, 0] > 5].amin((0, 1), keepdim=True),
    "max of rows": lambda x: x[x[:, 0] > 5].max(0),
    "max of columns": lambda x: x[x[:, 0] > 5].max(1),
    "norm": lambda x: torch.linalg.vector_norm(x[x[:, 0] > 5], float("inf")),
    "argmax": lambda x: x[x > 5].argmax(),
}


NOT_TRACED = {"amax", "amin kept"} if HAS_ORT_BACKEND else set()
"""torch 2.8 asks whether what is counted is empty."""


@pytest.mark.parametrize("name", sorted(EXTREMA.keys() - NOT_TRACED))
def test_the_extremum_of_what_may_have_no_elements(name: str) -> None:
    program = EXTREMA[name]
    full = torch.tensor([[7.0, -1, float("nan")], [6, 9, 2], [0, 1, 2]])
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = compile_strictly(program, dynamic=None, fallback=True)[0]
        for x in (full, full[1:], full):
            torch.testing.assert_close(compiled(x), program(x), equal_nan=True)
        if name == "max of columns":  # of no rows there is none to ask
            torch.testing.assert_close(compiled(full[2:]), program(full[2:]))
            return
        with pytest.raises((RuntimeError, IndexError)) as expected:
            program(full[2:])
        with pytest.raises(expected.type):
            compiled(full[2:])
        torch.testing.assert_close(compiled(full), program(full), equal_nan=True)


def test_a_cross_entropy_of_probabilities(caplog: pytest.LogCaptureFixture) -> None:
    """In place of a NaN torch cuts off the logarithm of zero."""

    def program(x: Tensor, target: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        x = (x * 2 + 1).sin().abs().clamp(0, 0.5) * 2
        return (
            F.binary_cross_entropy(x, target),
            F.binary_cross_entropy(x, target, weight, reduction="none"),
            F.binary_cross_entropy(x, target, reduction="sum"),
        )

    x = torch.tensor([[-1.0, 0.0, 0.25], [0.5, 1.0, 2.0]], requires_grad=True)
    y = x.detach().clone().requires_grad_()
    target, weight = torch.rand(2, 3), torch.rand(2, 3)
    expected = program(x, target, weight)
    with caplog.at_level(logging.INFO, logger="dort_rewriter"):
        got = torch.compile(program, backend=OrtBackend())(y, target, weight)
    torch.testing.assert_close(got, expected)
    assert "A session calls these operators in torch" in caplog.text
    for results in (got, expected):
        sum(r.sum() for r in results).backward()  # type: ignore[union-attr]
    torch.testing.assert_close(y.grad, x.grad)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_a_file_has_the_formula_of_the_cross_entropy(reduction: str, dtype: torch.dtype) -> None:
    class Loss(torch.nn.Module):
        def forward(self, x: Tensor, target: Tensor, weight: Tensor) -> Tensor:
            return F.binary_cross_entropy(x, target, weight, reduction=reduction)

    args = tuple(torch.rand(3, 5).to(dtype) for _ in range(3))
    session = onnxruntime.InferenceSession(
        to_onnx(Loss(), args).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    names = [i.name for i in session.get_inputs()]
    (got,) = session.run(None, {n: a.numpy() for n, a in zip(names, args, strict=True)})
    torch.testing.assert_close(torch.from_numpy(got), Loss()(*args))


EPS = (0.1, 0.5, 0.6, 0.9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_lower_bound_of_a_logit_wins(dtype: torch.dtype) -> None:
    """Above a half it is beyond the upper one."""

    def program(x: Tensor) -> tuple[Tensor, ...]:
        return tuple(torch.logit(x, eps) for eps in EPS)

    x = torch.tensor([-0.5, 0.05, 0.3, 0.5, 0.95, 1.5, float("nan")], dtype=dtype)
    got = compile_strictly(program)[0](x)
    torch.testing.assert_close(got, program(x), equal_nan=True)


def image(n: int) -> tuple[Tensor, ...]:
    return (torch.randn(n, 4, 5, 6).to(memory_format=torch.channels_last),)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.int64])
def test_ldexp_has_the_type_of_the_exponent_beside_integers(dtype: torch.dtype) -> None:
    def program(x: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
        return torch.ldexp(x, other), torch.ldexp(x + 0.5, other)

    args = (torch.tensor([[1, -2, 3], [4, 5, 1]], dtype=torch.int32), torch.tensor(1.3).to(dtype))
    torch.testing.assert_close(compile_strictly(program)[0](*args), program(*args))


@pytest.mark.parametrize("mode", ["reflect", "replicate"])
def test_how_padded_volumes_lie_in_memory(mode: str) -> None:
    x = torch.randn(2, 2, 4, 5, 6).contiguous(memory_format=torch.channels_last_3d)
    compiled = torch.compile(F.pad, backend=OrtBackend())
    got, expected = (f(x, (1, 2, 0, 1, 2, 1), mode=mode) for f in (compiled, F.pad))
    assert got.stride() == expected.stride()
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "program",
    [
        lambda x: F.pad(x * 2, (1, 2, 0, 1), mode="reflect"),
        lambda x: F.pad(x, (1, 2, 0, 1), mode="replicate"),
        lambda x: (x.roll(1, 2), (x + 1).roll((1, 2), (1, 3))),
        lambda x: torch.unsafe_chunk(x * 2, 2, 1),
        lambda x: torch.unsafe_split(x * 2, 3, 2),
        lambda x: (torch.unsafe_split_with_sizes(x * 2, [1, 3], 1)[1], x + 1),
    ],
)
def test_how_parts_lie_in_memory(program: Callable[..., Any], dynamic: bool) -> None:
    def compile_it(function: Callable[..., Any]) -> Callable[..., Any]:
        return compile_strictly(function, dynamic=dynamic, fallback=True)[0]

    check(Program(program, image), compile_it, sizes=(2, 3), dynamic=dynamic)


def test_results_that_nobody_reads_may_have_any_sizes(caplog: pytest.LogCaptureFixture) -> None:
    """Of bags with a last offset torch records less than the kernel gives."""

    def program(x: Tensor, i: Tensor) -> tuple[Tensor, Tensor]:
        ends = torch.tensor([0, 2, 4])
        return (
            F.embedding_bag(i, x * 2, ends, mode="sum", include_last_offset=True),
            F.embedding_bag(i, x * 2, torch.tensor([0, 0, 2]), mode="max"),
        )

    x, i = torch.randn(3, 4), torch.tensor([0, 1, 1, 2])
    torch.testing.assert_close(torch.compile(program, backend=OrtBackend())(x, i), program(x, i))
    assert "from now on" not in caplog.text


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_numbers_of_8_bits_are_left_to_torch(
    dtype: torch.dtype, caplog: pytest.LogCaptureFixture
) -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        return (x * 2).to(dtype).float() + 1, x.to(dtype).t().float()

    x = torch.randn(3, 4)
    torch.testing.assert_close(torch.compile(program, backend=OrtBackend())(x), program(x))
    assert "from now on" not in caplog.text


def test_a_gradient_through_what_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    with torch._dynamo.config.patch(
        capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True
    ):
        compiled = torch.compile(lambda x: (x * x[x > 0].sum()).sin(), backend=OrtBackend())
        for _ in range(2):
            x = torch.randn(3, 4, requires_grad=True)
            y = x.detach().clone().requires_grad_()
            compiled(y).sum().backward()
            (x * x[x > 0].sum()).sin().sum().backward()
            torch.testing.assert_close(y.grad, x.grad)
    assert "from now on" not in caplog.text
