"""Gradients as kernels of the training build."""

from __future__ import annotations

import copy

import onnx
import pytest
import torch

from dort_rewriter import OrtBackend
from dort_rewriter.optimize.patterns.onnxruntime.layers import SoftmaxGrad
from dort_rewriter.runtime.kernel_query import kernel_query
from tests.optimize.rewrites import assert_refuses, assert_rewrites

HAS_KERNEL = kernel_query()("SoftmaxGrad_13", "com.microsoft", 1, [1, 1])

BACKWARD = """(float[2,3,5] g, float[2,3,5] y) => (float[2,3,5] z) <int64[1] axis = {-1}> {
    m = Mul(g, y)
    s = ReduceSum<keepdims=1>(m, axis)
    d = Sub(g, s)
    z = Mul(d, y)
}"""


@pytest.mark.skipif(not HAS_KERNEL, reason="only the training build of onnxruntime has it")
@pytest.mark.parametrize("axis", [-1, 1])
def test_softmax_grad(axis: int) -> None:
    assert_rewrites(
        SoftmaxGrad,
        BACKWARD.replace("{-1}", f"{{{axis}}}"),
        f"""(float[2,3,5] g, float[2,3,5] y) => (float[2,3,5] z) {{
            z = com.microsoft.SoftmaxGrad_13 <axis={axis % 3}> (g, y)
        }}""",
        reference=False,
    )


def test_without_the_kernel_nothing_is_done() -> None:
    """As with every onnxruntime but the training build."""
    assert_refuses(SoftmaxGrad, BACKWARD, "no kernel for the type", kernels=False)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("{-1}", "{-1, 1}", "not over one axis"),
        ("float[2,3,5] g", "float[1,3,5] g", "the gradient has another shape"),
        ("=> (float[2,3,5] z)", "=> (float[2,3,5] z, float[2,3,5] m)", "others read the product"),
        ("d = Sub(g, s)", "d = Sub(s, g)", None),
    ],
)
def test_what_is_no_softmax_gradient(old: str, new: str, reason: str | None) -> None:
    text = BACKWARD.replace(old, new)
    if "1}" in new:
        text = text.replace("int64[1] axis", "int64[2] axis")
    assert_refuses(SoftmaxGrad, text, reason)


def test_in_a_training_step() -> None:
    """One for the Softmax of the model, where there is a kernel; numbers are those of torch."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    models: list[onnx.ModelProto] = []
    options = {
        "optimization": {"patterns": "default+onnxruntime"},
        "pre_ort_model_transforms": [lambda m: models.append(copy.deepcopy(m))],
    }
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Softmax(-1))
    x = torch.randn(4, 6)
    compiled = torch.compile(model, backend=OrtBackend(options), fullgraph=True)
    scale = torch.linspace(-1, 1, 5)
    got, expected = (
        torch.autograd.grad((f(x) * scale).sum(), tuple(model.parameters()))
        for f in (compiled, model)
    )
    torch.testing.assert_close(got, expected)
    kinds = [node.op_type for m in models for node in m.graph.node]
    assert kinds.count("SoftmaxGrad_13") == int(HAS_KERNEL)
