"""Activations, softmax, norms and losses that are written out become one operator."""

from __future__ import annotations

import copy

import numpy as np
import onnx
import pytest
import torch

from dort_rewriter import OptimizationOptions, OrtBackend
from dort_rewriter.optimize.patterns.base import Rule
from dort_rewriter.optimize.patterns.standard.layers import (
    CrossEntropyScatter,
    LogSoftmax,
    RMSNormalization,
    Softmax,
    SwiGLU,
    Swish,
)
from dort_rewriter.optimize.pipeline import optimize
from dort_rewriter.ort_module import max_opset
from tests.optimize.rewrites import assert_refuses, assert_rewrites, model_of

HEADER = "(float[2,N] x) => (float[2,N] y)"
SWISH = "<float a = {1.702}> { z = Mul(x, a) g = Sigmoid(z) y = Mul(g, x) }"
GATED = "(float[2,N] x, float[2,N] b) => (float[2,N] y)"


@pytest.mark.skipif(max_opset() < 24, reason="this onnxruntime has no opset 24")
def test_swish() -> None:
    after = f"{HEADER} {{ y = Swish<alpha = 1.702>(x) }}"
    assert_rewrites(Swish, f"{HEADER} {SWISH}", after, opset=24)


def test_older_opsets_have_no_swish() -> None:
    assert_refuses(Swish, f"{HEADER} {SWISH}", opset=23)


def test_others_read_the_gate() -> None:
    header = "(float[2,N] x) => (float[2,N] y, float[2,N] g)"
    assert_refuses(Swish, f"{header} {SWISH}", "others read the gate", opset=24)


def test_swiglu_of_other_shapes() -> None:
    header = "(float[2,N] x, float[N] b) => (float[2,N] y)"
    text = f"{header} {{ s = Swish(x) y = Mul(s, b) }}"
    assert_refuses(SwiGLU, text, "the inputs differ in shape", opset=28)


def test_swiglu_without_a_kernel() -> None:
    text = f"{GATED} {{ s = Swish(x) y = Mul(s, b) }}"
    assert_refuses(SwiGLU, text, "no kernel for the type", opset=28, kernels=False)


INSIDE = """m = ReduceMax<keepdims=1>(x, axis) c = Sub(x, m) e = Exp(c)
    s = ReduceSum<keepdims=1>(e, axis)"""
PARTS: dict[type[Rule], str] = {
    Softmax: f"{{{INSIDE} y = Div(e, s)}}",
    LogSoftmax: f"{{{INSIDE} l = Log(s) y = Sub(c, l)}}",
}
RULES = list(PARTS)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("axis", [-1, 1])
def test_the_parts_become_one(rule: type[Rule], axis: int) -> None:
    """Over any one axis, sizes unknown too."""
    assert_rewrites(
        rule,
        f"(float[2,N,5] x) => (float[2,N,5] y) <int64[1] axis = {{{axis}}}> {PARTS[rule]}",
        f"(float[2,N,5] x) => (float[2,N,5] y) {{y = {rule.__name__}<axis={axis % 3}>(x)}}",
    )


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("int64[1] axis = {-1}", "int64[2] axis = {1, -1}", "not over one axis"),
        ("ReduceMax<keepdims=1>(x, axis)", "ReduceMax<keepdims=1>(x, first)", "not over one axis"),
        ("ReduceMax<keepdims=1>(x, axis)", "ReduceMax<keepdims=1>(z, axis)", None),
        ("ReduceMax", "ReduceMin", None),
        ("=> (float[2,N,5] y)", "=> (float[2,N,5] y, float[2,N,5] SHARED)",
         "others read what is inside"),
    ],
)  # fmt: skip
def test_what_is_no_softmax(rule: type[Rule], old: str, new: str, reason: str | None) -> None:
    """And a training graph that keeps what is inside."""
    text = f"""(float[2,N,5] x, float[2,N,5] z) => (float[2,N,5] y)
        <int64[1] axis = {{-1}}, int64[1] first = {{0}}> {PARTS[rule]}"""
    text = text.replace(old, new).replace("SHARED", "e" if rule is Softmax else "c")
    assert_refuses(rule, text, reason)


@pytest.mark.parametrize("rule", RULES)
def test_without_a_kernel_nothing_is_done(rule: type[Rule]) -> None:
    assert_refuses(
        rule,
        f"(float[2,5] x) => (float[2,5] y) <int64[1] axis = {{-1}}> {PARTS[rule]}",
        "no kernel for the type",
        kernels=False,
    )


NORM = """<float e = {1e-6}, int64[1] last = {-1}> {
    s = Mul(x, x) m = ReduceMean<keepdims=1>(s, last) v = Add(m, e) d = Sqrt(v)
    r = Reciprocal(d) n = Mul(x, r) y = Mul(w, n)
}"""
NORM_HEADER = "(float[2,N,8] x, float[8] w) => (float[2,N,8] y)"

needs_opset_23 = pytest.mark.skipif(max_opset() < 23, reason="this onnxruntime has no opset 23")


@needs_opset_23
def test_rms_norm() -> None:
    """One node."""
    assert_rewrites(
        RMSNormalization,
        f"{NORM_HEADER} {NORM}",
        f"{NORM_HEADER} {{y = RMSNormalization<axis=-1, epsilon=1e-6>(x, w)}}",
        opset=23,
    )


def test_older_opsets_have_no_such_operator() -> None:
    assert_refuses(RMSNormalization, f"{NORM_HEADER} {NORM}")


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("float[2,N,8] y)", "float[2,N,8] y, float[2,N,1] r)", "others read the deviation"),
        ("float[8] w", "float[1,8] w", "the weight is no vector over the last axis"),
        ("{-1}", "{1}", "another axis than the last"),
        ("float", "double", "it would be computed in float32"),
    ],
)
def test_what_is_left_alone(old: str, new: str, reason: str) -> None:
    text = f"{NORM_HEADER} {NORM}".replace(old, new)
    assert_refuses(RMSNormalization, text, reason, opset=23)


def test_without_a_kernel() -> None:
    text = f"{NORM_HEADER} {NORM}"
    assert_refuses(RMSNormalization, text, "no kernel for the type", opset=23, kernels=False)


BACKWARD = """(float[2,5] y, int64[2,1] t, float[2,1] g) => (float[2,5] z)
    <float o = {0.0}, int64[2] whole = {2, 5}, int64[1] last = {1}> {
    zeros = Expand(o, whole)
    h = ScatterElements<axis=1>(zeros, t, g)
    s = ReduceSum<keepdims=1>(h, last)
    e = Exp(y)
    p = Mul(e, s)
    z = Sub(h, p)
}"""
REDUCED = """(float[2,5] y, int64[2,1] t, float[2,1] g) => (float[2,5] z)
    <float o = {0.0}> {
    e = Exp(y)
    q = Mul(e, g)
    p = Sub(o, q)
    c = GatherElements<axis=1>(y, t)
    k = Exp(c)
    s = Add(g, o)
    m = Mul(k, s)
    n = Sub(g, m)
    z = ScatterElements<axis=1>(p, t, n)
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


def test_cross_entropy_grad_without_our_kernels() -> None:
    """A pass over all classes is not worth the sign of a zero."""
    model = model_of(BACKWARD, 18)
    options = OptimizationOptions(patterns=[CrossEntropyScatter])
    optimize(model, options, has_kernel=lambda _, domain, *args, **kwargs: not domain)
    assert [node.op_type for node in model.graph] == ["Exp", "Neg", "Mul", "ScatterElements"]


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
    after = """(float[3,2] y, int64[1,2] t, float[1,2] g) => (float[3,2] z)
        <float o = {0.0}> {
        e = Exp(y)
        q = Mul(e, g)
        p = Sub(o, q)
        c = GatherElements<axis=0>(y, t)
        k = Exp(c)
        s = Add(g, o)
        m = Mul(k, s)
        n = Sub(g, m)
        z = ScatterElements<axis=0>(p, t, n)
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


def test_without_a_kernel_the_gradient_stays() -> None:
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
    assert [n.op_type for n in models[-1].graph.node].count("GatherElements") == applied
