"""What torch records wrongly: 2.8 quotients of integers of symbolic sizes, norms, a loss; each
version the statistics of normalizations beside halves."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dort_rewriter import OrtBackend, to_onnx
from tests.backends.memory.aliases import Program, check

PROGRAMS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "alone": lambda a, b: a / b,
    "by itself": lambda a, b: a / (a.abs() + 1),
    "by a row": lambda a, b: a / b[:1],
    "sums": lambda a, b: ((a / b).sum(), (a / b).cumsum(0), (a / b).prod(1)),
    "beside integers": lambda a, b: (a / b * 2 + a, torch.where(a > 2, a / b, a)),
    "joined": lambda a, b: torch.cat([a / b, (a / b) * 3], 1),
    "views": lambda a, b: ((a / b)[1:].t(), (a / b).split(2, 1)[1], (a / b).unbind(1)[0]),
    "compared": lambda a, b: ((a / b) > 0.5, (a / b).max(1), (a / b).sort(0)),
    "counted": lambda a, b: (a / b)[a > b],
    "again": lambda a, b: (a / b) / b,
    "narrow": lambda a, b: a.to(torch.int8) / b.to(torch.int8),
    "written": lambda a, b: torch.zeros(a.shape).copy_(a / b),
}


def _arguments(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(-4, 4 * n - 4).view(n, 4), torch.arange(1, 4 * n + 1).view(n, 4)


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str) -> None:
    torch._dynamo.reset()
    counts = {"capture_dynamic_output_shape_ops": name == "counted"}
    with torch._dynamo.config.patch(**counts):
        compiled = torch.compile(PROGRAMS[name], backend=OrtBackend(), dynamic=True)
        for n in (3, 5):
            expected = PROGRAMS[name](*_arguments(n))
            torch.testing.assert_close(compiled(*_arguments(n)), expected)


def test_a_quotient_that_a_gradient_reads() -> None:
    torch._dynamo.reset()

    def scaled(w: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (w * (a / b)).exp().sum()

    compiled = torch.compile(scaled, backend=OrtBackend(), dynamic=True)
    for n in (3, 5):
        w = torch.linspace(-1, 1, 4 * n).view(n, 4).requires_grad_()
        results = [torch.autograd.grad(f(w, *_arguments(n)), w) for f in (compiled, scaled)]
        torch.testing.assert_close(*results)


@pytest.mark.parametrize("name", [n for n in PROGRAMS if n not in ("counted", "written")])
def test_files(name: str) -> None:
    class Model(torch.nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> Any:
            return PROGRAMS[name](a, b)

    model = to_onnx(Model(), _arguments(3), dynamic_shapes=({0: "n"}, {0: "n"}))
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    names = [i.name for i in session.get_inputs()]
    for n in (3, 5):
        given = _arguments(n)
        results = session.run(None, dict(zip(names, (t.numpy() for t in given), strict=True)))
        expected = torch.utils._pytree.tree_leaves(PROGRAMS[name](*given))
        for mine, theirs in zip(results, expected, strict=True):
            assert mine.dtype == theirs.numpy().dtype
            np.testing.assert_allclose(mine, theirs.numpy(), rtol=1e-6)


NORMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "of one": lambda x: torch.linalg.vector_norm(x[:1, 0], 1, -1),
    "of rows of one": lambda x: torch.linalg.vector_norm(x[:, :1], 3, -1) + x[0, 0],
    "of two dimensions": lambda x: torch.linalg.vector_norm(x[:1, None], 2, (-2, -3)).sum(-1),
    "kept": lambda x: torch.linalg.vector_norm(x[:, :1], 1, -1, keepdim=True) * x,
    "repeated": lambda x: torch.linalg.vector_norm(x[:, :1], 1, -1).tile((2,)).unsqueeze(-1),
    "of one half": lambda x: x[0, 0].half().unsqueeze(0).norm(),
    "in float64": lambda x: torch.linalg.vector_norm(x[:, :1], 1, -1, dtype=torch.float64).exp(),
}


@pytest.mark.parametrize("name", NORMS)
def test_norms_over_one_element(name: str) -> None:
    torch._dynamo.reset()
    x = torch.linspace(-2, 2, 12).view(4, 3)
    compiled = torch.compile(NORMS[name], backend=OrtBackend())
    torch.testing.assert_close(compiled(x), NORMS[name](x))


def test_parts_of_a_norm_over_one_element() -> None:
    """Dynamo itself takes it for a row, which is one part."""

    def program(x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool1d(x.squeeze(), 2)
        return torch.linalg.vector_norm(x, 1, -1).transpose(0, -1).split(2)[0]

    torch._dynamo.reset()
    compiled = torch.compile(program, backend=OrtBackend(), dynamic=True)
    for n in (4, 6):
        x = torch.linspace(-2, 2, 3 * n).view(n, 3)
        torch.testing.assert_close(compiled(x), program(x))


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_norms_over_one_element_are_differentiated(dynamic: bool) -> None:
    """AOTAutograd looks at the results before it traces them, and makes their gradients like."""
    program = Program(
        lambda x: F.pad(torch.linalg.vector_norm(x, 1, -1), (1, 0), value=0.5),
        lambda n: (torch.linspace(-2, 2, n).view(n, 1),),
    )
    torch._dynamo.reset()
    compiled = partial(torch.compile, backend=OrtBackend(), dynamic=dynamic)
    check(program, compiled, sizes=(4, 6) if dynamic else (4,), dynamic=dynamic, mode="grad")


SEEN: dict[str, Callable[[torch.Tensor], Any]] = {
    "a norm": lambda x: (
        x[:1, :1].half().norm().unsqueeze(-1),
        x[:1, 0].half().norm(1)[None, None],
    ),
    "a norm of rows": lambda x: (torch.linalg.vector_norm(x[:, :1], 1, -1).view(2, -1).t(),),
    "a quotient": lambda x: (x.long() / 2).t()[1:].split(1, 1),
    "parts of a quotient": lambda x: [v[::2] for v in (x.long() / x.shape[0]).unbind(1)],
    "a written quotient": lambda x: (x.long() / 3).t()[1:].mul_(x[0, 0]),
}


@pytest.mark.parametrize("name", SEEN)
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_views(name: str, dynamic: bool) -> None:
    program = Program(SEEN[name], lambda n: (torch.linspace(-2, 2, n * 3).view(n, 3),))
    sizes = (4, 6) if dynamic else (4,)
    torch._dynamo.reset()
    compiled = partial(torch.compile, backend=OrtBackend(), dynamic=dynamic)
    check(program, compiled, sizes=sizes, dynamic=dynamic)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize(
    ("dtype", "of_target"),
    [
        (torch.float32, torch.float32),
        (torch.float64, torch.float32),
        (torch.float32, torch.float64),
        (torch.float32, torch.bfloat16),
    ],
    ids=str,
)
def test_a_loss_of_logits_has_the_type_of_the_target(
    dtype: torch.dtype, of_target: torch.dtype, reduction: str
) -> None:
    def function(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> Any:
        loss = torch.nn.functional.binary_cross_entropy_with_logits
        found = [
            loss(x, y, reduction=reduction),
            loss(x, y, weight=w, reduction=reduction),
            loss(x, y, pos_weight=w, reduction=reduction),
        ]
        return *found, found[0] * 2

    x, y = torch.linspace(-3, 3, 12).view(3, 4), torch.rand(3, 4)
    arguments = x.to(dtype), y.to(of_target), torch.tensor([1.0, 2.0, 0.5, 3.0], dtype=of_target)
    torch._dynamo.reset()
    compiled = torch.compile(function, backend=OrtBackend())
    # A loss of float64 is made of logarithms of float32 numbers, in float32.
    near = (
        {} if of_target is dtype or of_target is torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-6}
    )
    torch.testing.assert_close(compiled(*arguments), function(*arguments), **near)
    x, y, w = arguments
    grads = [
        torch.autograd.grad(f(z := x.clone().requires_grad_(), y, w)[1].sum(), z)
        for f in (compiled, function)
    ]
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("of_target", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["huber_loss", "soft_margin_loss"])
def test_a_loss_beside_a_wider_target_has_the_type_of_its_input(
    name: str, of_target: torch.dtype, reduction: str
) -> None:
    loss = getattr(torch.nn.functional, name)
    x = torch.linspace(-3, 3, 12).to(torch.bfloat16 if of_target is torch.float32 else None)
    target = torch.linspace(1, -1, 12, dtype=of_target)
    compiled = torch.compile(lambda x, y: loss(x * 2, y, reduction=reduction), backend="onnxrt")
    expected = loss(x * 2, target, reduction=reduction)
    torch.testing.assert_close(compiled(x, target), expected)


NORMALIZATIONS: dict[str, Callable[[], nn.Module]] = {
    "batch": lambda: nn.BatchNorm2d(8),
    "group": lambda: nn.GroupNorm(4, 8),
    "instance": lambda: nn.InstanceNorm2d(8, affine=True),
    "layer": lambda: nn.LayerNorm([8, 6, 6]),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", NORMALIZATIONS)
def test_gradients_of_weights_beside_halves_are_rounded_as_float32(
    name: str, dynamic: bool | None
) -> None:
    """torch records their statistics as halves: a mean of three has then an error of 1 %."""
    torch.manual_seed(0)
    norm = NORMALIZATIONS[name]()
    exact = copy.deepcopy(norm).double()
    x = (torch.randn(4, 8, 6, 6) + 3).bfloat16().requires_grad_()
    wide = x.detach().double().requires_grad_()
    weights = torch.randn(4, 8, 6, 6).bfloat16()
    compiled = torch.compile(norm, backend="onnxrt", fullgraph=True, dynamic=dynamic)
    result = compiled(x)
    assert result.dtype is torch.bfloat16
    result.backward(weights)
    exact(wide).backward(weights.double())
    for ours, other in zip(norm.parameters(), exact.parameters(), strict=True):
        torch.testing.assert_close(ours.grad.double(), other.grad, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(x.grad.double(), wide.grad, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("training", [False, True])
def test_statistics_beside_halves_have_the_type_of_eager_mode(training: bool) -> None:
    weight = torch.rand(8)

    def normalized(x: torch.Tensor) -> list[torch.Tensor]:
        over = torch.native_layer_norm(x.reshape(2, 16, 8), [8], weight, weight, 1e-5)
        by_group = torch.native_group_norm(x, weight, weight, 2, 8, 16, 4, 1e-5)
        running = (None, None) if training else (weight, weight)
        batch = torch.native_batch_norm(x, weight, weight, *running, training, 0.1, 1e-5)
        return [*over, *by_group, *batch]

    x = torch.randn(2, 8, 4, 4).bfloat16()
    compiled = torch.compile(lambda x: normalized(x * 2), backend="onnxrt", fullgraph=True)
    for ours, other in zip(compiled(x), normalized(x * 2), strict=True):
        torch.testing.assert_close(ours, other)
