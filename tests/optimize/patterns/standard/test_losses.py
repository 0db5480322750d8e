"""Gradients of losses."""

from __future__ import annotations

import copy

import numpy as np
import onnx
import pytest
import torch

from dort_rewriter import OrtBackend
from dort_rewriter.optimize.patterns.standard.layers import CrossEntropyScatter
from tests.optimize.rewrites import assert_refuses, assert_rewrites

BACKWARD = """(float[2,5] y, int64[2,1] t, float[2,1] g) => (float[2,5] z)
    <float o = {0.0}, int64[2] whole = {2, 5}, int64[1] last = {1}> {
    zeros = Expand(o, whole)
    h = ScatterElements<axis=1>(zeros, t, g)
    s = ReduceSum<keepdims=1>(h, last)
    e = Exp(y)
    p = Mul(e, s)
    z = Sub(h, p)
}"""
REDUCED = """(float[2,5] y, int64[2,1] t, float[2,1] g) => (float[2,5] z) {
    e = Exp(y)
    n = Neg(g)
    p = Mul(e, n)
    z = ScatterElements<axis=1, reduction="add">(p, t, g)
}"""
INPUTS = {
    "y": np.random.default_rng(0).normal(size=(2, 5)).astype(np.float32),
    "t": np.array([[4], [0]]),
    "g": np.array([[0.3], [-1.7]], dtype=np.float32),
}


def test_cross_entropy_grad() -> None:
    """To the last bit."""
    assert_rewrites(
        CrossEntropyScatter, BACKWARD, REDUCED, inputs=INPUTS, rtol=0, atol=0, reference=False
    )
    assert_rewrites(CrossEntropyScatter, BACKWARD, REDUCED, inputs=INPUTS)


def test_constants_of_all_elements() -> None:
    """As folding leaves them, and along another axis."""
    before = """(float[3,2] y, int64[1,2] t, float[1,2] g) => (float[3,2] z)
        <int64[2] whole = {3, 2}, int64[1] first = {0}> {
        zeros = ConstantOfShape(whole)
        h = ScatterElements<axis=0>(zeros, t, g)
        s = ReduceSum<keepdims=1>(h, first)
        e = Exp(y)
        p = Mul(s, e)
        z = Sub(h, p)
    }"""
    after = """(float[3,2] y, int64[1,2] t, float[1,2] g) => (float[3,2] z) {
        e = Exp(y)
        n = Neg(g)
        p = Mul(e, n)
        z = ScatterElements<axis=0, reduction="add">(p, t, g)
    }"""
    inputs = {
        "y": np.random.default_rng(0).normal(size=(3, 2)).astype(np.float32),
        "t": np.array([[2, 1]]),
        "g": np.array([[0.3, -1.7]], dtype=np.float32),
    }
    assert_rewrites(CrossEntropyScatter, before, after, inputs=inputs)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("float o = {0.0}", "float o = {1.0}", "written into something else than zeros"),
        ("g) => (float[2,5] z)", "g) => (float[2,5] z, float[2,5] h)", "others read the gradient"),
        ("float[2,1] g", "float[2,5] g", "the gradient is not one for each sample"),
        ("int64[2,1] t, float[2,1]", "int64[1,1] t, float[1,1]", "not one class of each sample"),
        (
            "<axis=1>(zeros",
            '<axis=1, reduction="add">(zeros',
            "written into something else than zeros",
        ),
        ("<axis=1>(zeros", "<axis=0>(zeros", "another axis than that of the sum"),
        ("keepdims=1>(h, last)", "keepdims=0>(h, last)", None),
        ("z = Sub(h, p)", "z = Sub(p, h)", None),
    ],
)
def test_what_is_no_gradient_of_a_cross_entropy(old: str, new: str, reason: str | None) -> None:
    text = BACKWARD.replace(old, new)
    assert text != BACKWARD
    if "keepdims=0" in new:  # so that it still broadcasts
        text = text.replace("[2,5]", "[2,2]").replace("{2, 5}", "{2, 2}")
    assert_refuses(CrossEntropyScatter, text, reason)


def test_without_a_kernel_nothing_is_done() -> None:
    assert_refuses(CrossEntropyScatter, BACKWARD, "no kernel for the type", kernels=False)


@pytest.mark.parametrize(
    ("options", "dynamic", "applied"),
    [
        ({}, False, 1),
        ({"reduction": "none"}, True, 1),
        ({"label_smoothing": 0.1}, False, 0),
    ],
    ids=["mean", "none", "smoothed"],
)
def test_in_a_training_step(options: dict[str, object], dynamic: bool, applied: int) -> None:
    """With a sample that is ignored; the numbers are those of torch."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    models: list[onnx.ModelProto] = []
    backend = OrtBackend(
        {
            "optimization": {"patterns": "default"},
            "pre_ort_model_transforms": [lambda m: models.append(copy.deepcopy(m))],
        }
    )
    loss = torch.nn.CrossEntropyLoss(**options)  # type: ignore[arg-type]
    x = torch.randn(6, 7, requires_grad=True)
    labels = torch.randint(0, 7, (6,))
    labels[2] = -100
    compiled = torch.compile(loss, backend=backend, fullgraph=True, dynamic=dynamic)
    got, expected = (torch.autograd.grad((f(x, labels) * 1.5).sum(), x) for f in (compiled, loss))
    torch.testing.assert_close(got, expected)
    assert sum(has_sum(n) for n in models[-1].graph.node) == applied


def has_sum(node: onnx.NodeProto) -> bool:
    """Whether a node adds to what it scatters into."""
    return any(a.name == "reduction" and a.s == b"add" for a in node.attribute)
