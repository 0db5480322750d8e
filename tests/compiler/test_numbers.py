"""Python floats that Dynamo makes inputs of a graph: in the model, while they do not change."""

from __future__ import annotations

import copy
from collections.abc import Callable

import onnx
import pytest
import torch
from torch import nn

from dort_rewriter import OrtBackend
from dort_rewriter.compiler.frozen import FrozenNumbers


class Norm(nn.Module):
    """An RMS norm with an epsilon that may change."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


class Scaled(nn.Module):
    """A sum with a number."""

    def forward(self, x: torch.Tensor, number: float) -> torch.Tensor:
        return x.exp() + number * x


def backend_and_models() -> tuple[OrtBackend, list[onnx.ModelProto]]:
    models: list[onnx.ModelProto] = []
    options = {
        "optimization": {"patterns": "default+onnxruntime"},
        "pre_ort_model_transforms": [lambda m: models.append(copy.deepcopy(m))],
        "cache": False,
    }
    return OrtBackend(options), models


@pytest.mark.parametrize("training", [False, True])
def test_an_epsilon_is_known(training: bool) -> None:
    """A norm is one node; the graph is built again once, with an input, when epsilon changes."""
    torch._dynamo.reset()
    backend, models = backend_and_models()
    module = Norm(1e-6)
    compiled = torch.compile(module, backend=backend, dynamic=True, fullgraph=True)
    x = torch.randn(3, 8)
    fused = []
    for eps in (1e-6, 0.5, 0.25, 1e-6):
        module.eps = eps
        models.clear()
        with torch.set_grad_enabled(training):
            got, expected = compiled(x), module(x)
        torch.testing.assert_close(got, expected)
        if training:
            gradients = [torch.autograd.grad(y.sum(), module.weight)[0] for y in (got, expected)]
            torch.testing.assert_close(*gradients)
        kinds = [n.op_type for m in models[:1] for n in m.graph.node]
        fused.append("SimplifiedLayerNormalization" in kinds)
    assert fused == [True, False, False, False]
    assert models == []  # the last call built nothing


def test_a_number_that_changes_is_an_input() -> None:
    """The second value builds the model again, others do not."""
    torch._dynamo.reset()
    backend, models = backend_and_models()
    module = Scaled()
    compiled = torch.compile(module, backend=backend, dynamic=True, fullgraph=True)
    x = torch.randn(5)
    inputs = []
    for number in (0.1, 0.1, 0.2, 0.3, -0.0, 0.1):
        torch.testing.assert_close(compiled(x, number), module(x, number))
        inputs.append(len(models))
    assert inputs == [1, 1, 2, 2, 2, 2]
    assert [len(m.graph.input) for m in models] == [1, 2]


def test_what_is_taken() -> None:
    """Single numbers of float64 that no gradient goes to, but for zero."""
    number = torch.tensor(0.5, dtype=torch.float64)
    others = [torch.tensor(0.5), torch.ones(1, dtype=torch.float64), number * 0, 3, None]
    others.append(number.clone().requires_grad_())
    taken = FrozenNumbers.take([*others, number])
    assert taken.values == {len(others): 0.5}
    assert taken.unchanged([*others, number.clone()])
    assert not taken.unchanged([*others, number + 1e-16 + 1e-12])
    number.add_(1)  # the model keeps what it was
    assert taken.tensors[len(others)].item() == 0.5


@pytest.mark.parametrize(
    "compute",
    [
        lambda: torch.ops.aten.add(4, 3.3),
        lambda: torch.ops.aten.mul(4, 3.5),
        lambda: torch.ops.aten.div(1024, 100, rounding_mode="floor"),
    ],
    ids=["add", "mul", "div"],
)
def test_an_operator_of_numbers_alone_is_computed_in_their_common_type(
    compute: Callable[[], torch.Tensor],
) -> None:
    torch._dynamo.reset()
    x = torch.ones(3)
    compiled = torch.compile(lambda x: (x + compute(), compute()), backend=OrtBackend())
    torch.testing.assert_close(compiled(x), (x + compute(), compute()))
