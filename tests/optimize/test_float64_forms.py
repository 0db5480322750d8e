"""Files in float64: what has no kernel there is written in operators that have one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from onnx.reference import ReferenceEvaluator
from torch import nn

from dort_rewriter import to_onnx
from dort_rewriter.optimize.float64_forms import _FORMS, write_float64
from dort_rewriter.runtime.model_files import from_message, to_proto


class Applied(nn.Module):
    def __init__(self, call: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.call = call

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        return self.call(*tensors)


class Gradients(Applied):
    def forward(self, *tensors: torch.Tensor) -> Any:
        leaves = [t.detach().requires_grad_() for t in tensors]
        result = self.call(*leaves)
        return torch.autograd.grad((result * torch.arange(result.numel()).reshape(
            result.shape)).sum(), leaves)  # fmt: skip


def run(proto: Any, *tensors: torch.Tensor) -> list[np.ndarray]:
    settings = onnxruntime.SessionOptions()  # 1.19 fuses products of float64 that it cannot run
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    session = onnxruntime.InferenceSession(proto.SerializeToString(), settings)
    names = [i.name for i in proto.graph.input]
    return session.run(None, {n: t.numpy() for n, t in zip(names, tensors, strict=True)})


EDGES = [0.0, -0.0, 1.0, -1.0, 1e-300, -1e-9, 1e-4, 0.66, 0.7, 2.42, 5.9, 6.1, 30.0, 709.9, 1e9,
         1e200, float("inf"), -float("inf"), float("nan")]  # fmt: skip
FUNCTIONS = [name for name in _FORMS if not name.startswith("Conv")]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str) -> None:
    """Right to some units of the last place, with zeros of both signs, infinities and NaN."""
    generator = torch.Generator().manual_seed(0)
    near = torch.randn(2000, generator=generator, dtype=torch.float64) * 3
    small = torch.randn(500, generator=generator, dtype=torch.float64) * 1e-3
    x = torch.cat([near, small, torch.tensor(EDGES, dtype=torch.float64)])
    if name in ("Cos", "Tan"):
        x = x[~(x.abs() > 100)]  # where sines are not exact themselves
    if name == "Tan":
        x = x[~(x.cos().abs() < 0.05)]  # beside the poles it is as wrong as the cosine
    node = onnx.helper.make_node(name, ["x"], ["y"])
    shape = [None]
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph([node], "g", [value("x", 11, shape)], [value("y", 11, shape)])
    proto = onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=8
    )
    model = from_message(proto)
    write_float64(model, 18, lambda *asked: False)
    (found,) = run(to_proto(model), x)
    call = {"Erf": torch.erf}.get(name, getattr(torch, name.lower(), None))
    assert call is not None
    expected = call(x).numpy()
    at_zero = 1e-15 if name in ("Cos", "Tan") else 0.0
    np.testing.assert_allclose(found, expected, rtol=1e-14 if name == "Tan" else 2e-15,
                               atol=at_zero)  # fmt: skip
    assert (np.signbit(found) == np.signbit(expected))[expected == 0].all()


CONVOLUTIONS: dict[str, tuple[Callable[..., torch.Tensor], list[list[int]]]] = {
    "1d": (F.conv1d, [[2, 3, 8], [4, 3, 3], [4]]),
    "2d": (lambda x, w, b: F.conv2d(x, w, b, 2, 1), [[2, 3, 8, 7], [4, 3, 3, 2], [4]]),
    "3d": (lambda x, w: F.conv3d(x, w, dilation=2), [[1, 2, 5, 5, 5], [3, 2, 2, 2, 2]]),
    "groups": (lambda x, w: F.conv2d(x, w, groups=2, padding=1), [[2, 4, 5, 5], [6, 2, 3, 3]]),
    "same": (lambda x, w: F.conv1d(x, w, padding="same"), [[1, 2, 6], [3, 2, 3]]),
    "transposed": (
        lambda x, w, b: F.conv_transpose2d(x, w, b, 2, 1, 1), [[2, 3, 4, 5], [3, 2, 3, 3], [2]]
    ),
    "transposed groups": (
        lambda x, w: F.conv_transpose1d(x, w, stride=3, padding=2, groups=2, dilation=2),
        [[2, 4, 5], [4, 3, 2]],
    ),
    "more padding than filter": (
        lambda x, w: F.conv_transpose1d(x, w, padding=2), [[1, 2, 9], [2, 3, 2]]
    ),
}  # fmt: skip


@pytest.mark.parametrize("way", [Applied, Gradients])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name: str, way: type[Applied]) -> None:
    call, shapes = CONVOLUTIONS[name]
    torch.manual_seed(0)
    tensors = tuple(torch.randn(shape, dtype=torch.float64) for shape in shapes)
    expected = way(call)(*tensors)
    proto: Any = to_onnx(way(call), tensors)
    assert not {n.op_type for n in proto.graph.node} & {"Conv", "ConvTranspose"}
    names = [i.name for i in proto.graph.input]
    fed = {n: t.numpy() for n, t in zip(names, tensors, strict=True)}
    wanted = expected if isinstance(expected, tuple) else (expected,)
    for found in (run(proto, *tensors), ReferenceEvaluator(proto).run(None, fed)):
        for result, want in zip(found, wanted, strict=True):
            np.testing.assert_allclose(result, want.detach(), rtol=1e-12, atol=1e-12)


def test_a_dynamic_network() -> None:
    """Sizes of the picture and the batch vary, forward and gradient."""

    def network(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.gelu(F.conv2d(x, w, stride=2, padding=1)).tanh()

    x, w = (torch.randn(s, dtype=torch.float64) for s in ((2, 3, 8, 9), (4, 3, 3, 3)))
    other = torch.randn(3, 3, 6, 5, dtype=torch.float64)
    shapes = {"tensors": ({0: "n", 2: "h", 3: "w"}, None)}
    for way in (Applied, Gradients):
        proto: Any = to_onnx(way(network), (x, w), dynamic_shapes=shapes)
        for given in (x, other):
            expected = way(network)(given, w)
            wanted = expected if isinstance(expected, tuple) else (expected,)
            for found, want in zip(run(proto, given, w), wanted, strict=True):
                np.testing.assert_allclose(found, want.detach(), rtol=1e-12, atol=1e-12)


def test_any_runtime_keeps_them() -> None:
    """A file for any runtime says what it means."""
    x, w = (torch.randn(s, dtype=torch.float64) for s in ((1, 2, 5), (3, 2, 2)))
    proto: Any = to_onnx(Applied(F.conv1d), (x, w), options={"processor": "any"})
    assert [n.op_type for n in proto.graph.node] == ["Conv"]
