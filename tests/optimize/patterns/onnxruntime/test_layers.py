"""Activations, norms and a gradient become one kernel of onnxruntime."""

from __future__ import annotations

import copy

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch

from dort_rewriter import OrtBackend
from dort_rewriter.optimize.patterns.onnxruntime.layers import (
    FastGelu,
    GeluErf,
    SimplifiedLayerNormalization,
    SkipSimplifiedLayerNormalization,
    SoftmaxGrad,
)
from dort_rewriter.optimize.patterns.standard.layers import Gelu
from dort_rewriter.runtime.kernel_query import kernel_query
from tests.optimize.rewrites import (
    apply,
    assert_refuses,
    assert_rewrites,
    model_of,
    random_inputs,
    run_onnxruntime,
)

HEADER = """(float[2,N] x) => (float[2,N] y) <float half = {0.5}, float one = {1.0},
    float root = {0.70710677}, float square = {1.4142135}, float cube = {0.044715},
    float three = {3.0}, float slope = {0.7978846}>"""
ERF = [
    "h = Mul(x, half) a = Mul(x, root) e = Erf(a) g = Add(e, one) y = Mul(h, g)",
    "a = Div(x, square) e = Erf(a) g = Add(one, e) h = Mul(g, x) y = Mul(half, h)",
    "a = Mul(root, x) e = Erf(a) g = Add(e, one) h = Mul(g, half) y = Mul(x, h)",
]
TANH = [
    """h = Mul(x, half) p = Mul(x, x) q = Mul(p, x) r = Mul(q, cube) a = Add(x, r)
    s = Mul(a, slope) e = Tanh(s) g = Add(e, one) y = Mul(h, g)""",
    """h = Mul(half, x) q = Pow(x, three) r = Mul(cube, q) a = Add(r, x)
    s = Mul(slope, a) e = Tanh(s) g = Add(one, e) y = Mul(g, h)""",
]


@pytest.mark.parametrize("body", ERF)
def test_gelu_of_an_error_function(body: str) -> None:
    """In the orders exporters write it."""
    assert_rewrites(
        GeluErf,
        f"{HEADER} {{{body}}}",
        "(float[2,N] x) => (float[2,N] y) {y = com.microsoft.Gelu(x)}",
        reference=False,
    )
    assert_rewrites(
        Gelu,
        f"{HEADER} {{{body}}}",
        '(float[2,N] x) => (float[2,N] y) {y = Gelu<approximate="none">(x)}',
        opset=20,
    )


@pytest.mark.parametrize("body", TANH)
def test_gelu_of_a_tangent(body: str) -> None:
    """GPT-2's."""
    assert_rewrites(
        FastGelu,
        f"{HEADER} {{{body}}}",
        "(float[2,N] x) => (float[2,N] y) {y = com.microsoft.FastGelu(x)}",
        reference=False,
    )
    assert_rewrites(
        Gelu,
        f"{HEADER} {{{body}}}",
        '(float[2,N] x) => (float[2,N] y) {y = Gelu<approximate="tanh">(x)}',
        opset=20,
    )


def test_the_input_may_be_a_product() -> None:
    """It is not taken for a part of the formula."""
    assert_rewrites(
        GeluErf,
        f"{HEADER} {{z = Mul(x, half) {ERF[0].replace('Mul(x,', 'Mul(z,')}}}",
        """(float[2,N] x) => (float[2,N] y) <float half = {0.5}> {
            z = Mul(x, half)
            y = com.microsoft.Gelu(z)
        }""",
        reference=False,
    )


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (ERF[0].replace("x, root", "x, one"), None),
        (ERF[0].replace("e, one", "e, half"), None),
        (ERF[0].replace("Mul(x, half)", "Mul(x, root)"), None),
        (ERF[0].replace("y = Mul(h, g)", "t = Mul(h, g) y = Add(t, e)"),
         "others read what is inside"),
    ],
)  # fmt: skip
def test_what_is_no_gelu(body: str, reason: str | None) -> None:
    """Another slope, another shift, another factor, and a gate that others read."""
    assert_refuses(GeluErf, f"{HEADER} {{{body}}}", reason)


def test_what_follows_is_left_alone() -> None:
    """A product with the result is no part of it."""
    body = ERF[0].replace("y = Mul(h, g)", "t = Mul(h, g) y = Mul(t, x)")
    assert_rewrites(
        GeluErf,
        f"{HEADER} {{{body}}}",
        "(float[2,N] x) => (float[2,N] y) {t = com.microsoft.Gelu(x) y = Mul(t, x)}",
        reference=False,
    )


def test_another_cube_is_no_gelu() -> None:
    """The constant is part of the formula."""
    assert_refuses(FastGelu, f"{HEADER} {{{TANH[0].replace('q, cube', 'q, half')}}}")


def test_an_older_opset_has_no_gelu() -> None:
    """And a provider may have no kernel."""
    assert_refuses(Gelu, f"{HEADER} {{{ERF[0]}}}", "the opset has no Gelu")
    assert_refuses(
        Gelu, f"{HEADER} {{{ERF[0]}}}", "no kernel for the type", opset=20, kernels=False
    )
    assert_refuses(GeluErf, f"{HEADER} {{{ERF[0]}}}", "no kernel for the type", kernels=False)


def test_a_number_has_no_fast_gelu() -> None:
    """onnxruntime's kernel wants a dimension."""
    header = HEADER.replace("[2,N]", "")
    assert_refuses(FastGelu, f"{header} {{{TANH[0]}}}", "the kernel wants a dimension")


def test_float64_has_no_fast_gelu() -> None:
    """Eight digits of sixteen were right."""
    header = HEADER.replace("float", "double")
    assert_refuses(FastGelu, f"{header} {{{TANH[0]}}}", "the kernel has constants of float32")


FLOAT = "<float e = {1e-6}, int64[1] last = {-1}>"
BODY = """
    s = Mul(x, x)
    m = ReduceMean<keepdims=1>(s, last)
    v = Add(m, e)
    d = Sqrt(v)
    r = Reciprocal(d)
    n = Mul(x, r)
"""


@pytest.mark.parametrize(
    "body",
    [
        f"{{{BODY} y = Mul(w, n)}}",
        f"{{{BODY.replace('Mul(x, r)', 'Mul(r, x)')} y = Mul(n, w)}}",
        f"{{{BODY.replace('Add(m, e)', 'Add(e, m)').replace('Mul(x, r)', 'Div(x, d)')}"
        " y = Mul(w, n)}",
    ],
)
def test_the_ways_to_write_it(body: str) -> None:
    """Factors and summands in either order, and a division by the root."""
    assert_rewrites(
        SimplifiedLayerNormalization,
        f"(float[2,N,8] x, float[8] w) => (float[2,N,8] y) {FLOAT} {body}",
        """(float[2,N,8] x, float[8] w) => (float[2,N,8] y) {
            y = SimplifiedLayerNormalization<axis=-1, epsilon=1e-6>(x, w)
        }""",
        reference=False,
    )


def test_what_the_backward_pass_needs_is_the_second_result() -> None:
    """A training graph returns the reciprocal deviation."""
    assert_rewrites(
        SimplifiedLayerNormalization,
        f"""(float[2,N,8] x, float[8] w) => (float[2,N,8] y, float[2,N,1] r) {FLOAT}
        {{{BODY} y = Mul(w, n)}}""",
        """(float[2,N,8] x, float[8] w) => (float[2,N,8] y, float[2,N,1] r) {
            y, r = SimplifiedLayerNormalization<axis=-1, epsilon=1e-6>(x, w)
        }""",
        reference=False,
    )


def test_the_root_that_is_saved_is_computed_from_the_second_result() -> None:
    """Where a model divides by it."""
    divided = BODY.replace("r = Reciprocal(d)", "").replace("Mul(x, r)", "Div(x, d)")
    assert_rewrites(
        SimplifiedLayerNormalization,
        f"""(float[2,N,8] x, float[8] w) => (float[2,N,8] y, float[2,N,1] d) {FLOAT}
        {{{divided} y = Mul(w, n)}}""",
        """(float[2,N,8] x, float[8] w) => (float[2,N,8] y, float[2,N,1] d) {
            y, r = SimplifiedLayerNormalization<axis=-1, epsilon=1e-6>(x, w)
            d = Reciprocal(r)
        }""",
        reference=False,
    )


def test_a_norm_divided_by_its_root_in_training() -> None:
    """Fused in the forward graph, what the backward pass needs included."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    models: list[onnx.ModelProto] = []
    options = {
        "optimization": {"patterns": "default+onnxruntime"},
        "pre_ort_model_transforms": [lambda m: models.append(copy.deepcopy(m))],
    }

    def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return weight * (x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-6))

    x, weight = torch.randn(4, 6, requires_grad=True), torch.rand(6, requires_grad=True)
    compiled = torch.compile(norm, backend=OrtBackend(options), fullgraph=True)
    got, expected = (
        torch.autograd.grad((f(x, weight) ** 3).sum(), (x, weight)) for f in (compiled, norm)
    )
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    forward = [node.op_type for node in models[0].graph.node]
    assert forward.count("SimplifiedLayerNormalization") == 1
    assert "Sqrt" not in forward


def test_a_normalized_input_that_is_returned_stays() -> None:
    """It is computed from the second result."""
    assert_rewrites(
        SimplifiedLayerNormalization,
        f"""(float[2,8] x, float[8] w) => (float[2,8] y, float[2,8] n) {FLOAT}
        {{{BODY} y = Mul(w, n)}}""",
        """(float[2,8] x, float[8] w) => (float[2,8] y, float[2,8] n) {
            y, r = SimplifiedLayerNormalization<axis=-1, epsilon=1e-6>(x, w)
            n = Mul(x, r)
        }""",
        reference=False,
    )


def test_half_is_computed_in_float() -> None:
    """As models write it: casts around the normalization, not around the weight."""
    assert_rewrites(
        SimplifiedLayerNormalization,
        f"""(float16[2,8] h, float16[8] w) => (float16[2,8] y) {FLOAT}
        {{x = Cast<to=1>(h) {BODY} c = Cast<to=10>(n) y = Mul(w, c)}}""",
        """(float16[2,8] h, float16[8] w) => (float16[2,8] y) {
            y = SimplifiedLayerNormalization<axis=-1, epsilon=1e-6>(h, w)
        }""",
        reference=False,
        rtol=2e-3,  # one rounding to half instead of two
        atol=2e-3,
    )


@pytest.mark.parametrize(("dtype", "epsilon"), [("double", "1e-6"), ("float16", "1")])
@pytest.mark.parametrize("saved", ["", "[2,1] r", "[2,1] d"])
def test_a_type_of_the_second_result_that_the_kernel_does_not_give(
    dtype: str, epsilon: str, saved: str
) -> None:
    """The kernels of newer onnxruntime save the deviation as float32: the parts stay then."""
    outputs = f"{dtype}[2,8] y{', ' + dtype + saved if saved else ''}"
    model = model_of(
        f"({dtype}[2,8] x, {dtype}[8] w) => ({outputs}) <{dtype} e = {{{epsilon}}}, "
        f"int64[1] last = {{-1}}> {{{BODY} y = Mul(w, n)}}"
    )
    original = ir.to_proto(model)
    feeds = random_inputs(original)
    report = apply(SimplifiedLayerNormalization, model)
    if not saved:
        assert report.rules["SimplifiedLayerNormalization"].matches == 1
    wanted = run_onnxruntime(original, feeds)
    tolerance = 1e-12 if dtype == "double" else 5e-3
    for got, expected in zip(run_onnxruntime(ir.to_proto(model), feeds), wanted, strict=True):
        assert got.dtype == expected.dtype
        np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("header", "body", "reason"),
    [
        (
            f"(float[8,8] x, float[8] w) => (float[8,8] y) {FLOAT.replace('-1}', '0}')}",
            BODY,
            "another axis than the last",
        ),
        (
            "(float[2,8] x, float[8] w, float e) => (float[2,8] y) <int64[1] last = {-1}>",
            BODY,
            "epsilon is computed at run time",
        ),
        (
            f"(float[2,8] x, float[2,8] w) => (float[2,8] y) {FLOAT}",
            BODY,
            "the weight is no vector over the last axis",
        ),
        (f"(float[2,8] x, float[8] w) => (float[2,8] y) {FLOAT}", "n = Mul(x, x)", None),
        (
            f"(float[2,0] x, float[0] w) => (float[2,0] y) {FLOAT}",
            BODY,
            "kernels of norms take no empty rows",
        ),
    ],
)
def test_what_it_refuses(header: str, body: str, reason: str | None) -> None:
    """And why."""
    assert_refuses(SimplifiedLayerNormalization, f"{header} {{{body} y = Mul(w, n)}}", reason)


def test_a_provider_without_the_kernel() -> None:
    """Nothing is emitted that does not run."""
    assert_refuses(
        SimplifiedLayerNormalization,
        f"(float[2,8] x, float[8] w) => (float[2,8] y) {FLOAT} {{{BODY} y = Mul(w, n)}}",
        "no kernel for the type",
        kernels=False,
    )


SKIP = "{s = Add(a, b) y = SimplifiedLayerNormalization<axis=-1, epsilon=1e-6>(s, w)}"
SKIPPED = "com.microsoft.SkipSimplifiedLayerNormalization<epsilon=1e-6>(a, b, w)"
IS_FAST = kernel_query()("SkipSimplifiedLayerNormalization", "com.microsoft", 1, [1, 1, 1])


@pytest.mark.skipif(not IS_FAST, reason="the kernel takes twice as long as its parts")
@pytest.mark.parametrize(
    ("results", "fused"), [("", f"y = {SKIPPED}"), (", float[2,N,8] s", f"y, m, r, s = {SKIPPED}")]
)
def test_a_skip_connection_before_a_norm(results: str, fused: str) -> None:
    """The sum is a result of the kernel too."""
    header = f"(float[2,N,8] a, float[2,N,8] b, float[8] w) => (float[2,N,8] y{results})"
    assert_rewrites(
        SkipSimplifiedLayerNormalization,
        f"{header} {SKIP}",
        f"{header} {{{fused}}}",
        reference=False,
    )


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("float[2,N,8] b", "float[8] b", "one of the two is repeated"),
        ("2,N,8", "2,2,N,8", "not three axes of float32"),
        ("y = Simp", "y, r = Simp", "others read the deviation"),
        ("Add(a, b)", "Sub(a, b)", None),
    ],
)
def test_a_skip_connection_that_stays(old: str, new: str, reason: str | None) -> None:
    """Whether the kernel is here or not."""
    text = f"(float[2,N,8] a, float[2,N,8] b, float[8] w) => (float[2,N,8] y) {SKIP}"
    text = text.replace(old, new)
    if "r = " in new:
        text = text.replace("=> (float[2,N,8] y)", "=> (float[2,N,8] y, float[2,N,1] r)")
    assert_refuses(SkipSimplifiedLayerNormalization, text, reason)


def test_a_slow_skip_connection_is_left_alone() -> None:
    """As with onnxruntime 1.20 and later on the CPU."""
    assert_refuses(
        SkipSimplifiedLayerNormalization,
        f"(float[2,N,8] a, float[2,N,8] b, float[8] w) => (float[2,N,8] y) {SKIP}",
        "no kernel that is no slower",
        kernels=False,
    )


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
