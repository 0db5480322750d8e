"""What is written for OpenVINO has the special numbers of eager mode, on any provider."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir
import pytest
import torch

from dort_rewriter.optimize.provider_fit import KEEPING, keep_ranks, keep_special_numbers
from tests.optimize.rewrites import model_of, run_onnxruntime

NUMBERS = [0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 0.25, 3.0, -0.3, -2.7, 6e4]
OF_ONE = {
    "Elu": ("Elu(x)", torch.nn.functional.elu),
    "Exp": ("Exp(x)", torch.exp),
    "HardSigmoid": ("HardSigmoid<alpha=0.25>(x)", lambda x: (x / 4 + 0.5).clamp(0, 1)),
    "Neg": ("Neg(x)", torch.neg),
    "Relu": ("Relu(x)", torch.relu),
    "Softmax": ("Softmax<axis=0>(x)", lambda x: x.softmax(0)),
    "LogSoftmax": ("LogSoftmax(x)", lambda x: x.log_softmax(-1)),
}
OF_TWO = {
    "Clip": ("Clip(x, z, z)", lambda x, z: x.clamp(z[0], z[0])),
    "Div": ("Div(x, z)", torch.div),
    "Greater": ("Greater(x, z)", torch.gt),
    "GreaterOrEqual": ("GreaterOrEqual(x, z)", torch.ge),
    "Max": ("Max(x, z)", torch.maximum),
    "Min": ("Min(z, x)", torch.minimum),
}


def _check(model: ir.Model, feeds: dict[str, torch.Tensor], expected: torch.Tensor) -> None:
    assert keep_special_numbers(model) == 1
    assert keep_special_numbers(model) == 0, "applying it twice changes something"
    (got,) = run_onnxruntime(ir.to_proto(model), {n: x.numpy() for n, x in feeds.items()})
    np.testing.assert_allclose(got, expected.numpy(), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("op", OF_ONE)
def test_of_one(op: str) -> None:
    text, function = OF_ONE[op]
    x = torch.tensor(NUMBERS)
    for part in (x, x[:3], x[5:]):
        model = model_of(f"(float[N] x) => (float[N] y) {{ y = {text} }}")
        _check(model, {"x": part}, function(part))


@pytest.mark.parametrize("op", OF_TWO)
def test_of_two(op: str) -> None:
    text, function = OF_TWO[op]
    kind = "bool" if op.startswith("Greater") else "float"
    sizes = "" if op == "Clip" else "[M]"
    model = model_of(f"(float[N,M] x, float{sizes} z) => ({kind}[N,M] y) {{ y = {text} }}")
    a = torch.tensor(NUMBERS).reshape(-1, 1).expand(-1, len(NUMBERS)).contiguous()
    b = torch.tensor([0.25] if op == "Clip" else NUMBERS)
    expected = function(a, b)
    _check(model, {"x": a, "z": b[0] if op == "Clip" else b}, expected)


def test_a_quotient_by_a_denormal_number() -> None:
    model = model_of("(float[N] x, float[N] z) => (float[N] y) { y = Div(x, z) }")
    x = torch.tensor([2.6e-40, 1e-40, 1.0, -1e-38, 3e38, 0.0, 1.0, math.nan])
    z = torch.tensor([1e-40, -1e-40, 3e-39, 1e-38, 1e-40, 1e-45, 0.0, 1e-40])
    _check(model, {"x": x, "z": z}, x / z)
    assert {n.op_type for n in model.graph} >= {"Where", "Less", "Abs"}


@pytest.mark.parametrize(
    "text",
    [
        "{ r = Sqrt(z) q = Unsqueeze(r, a) y = Div(x, q) }",
        "{ e = Exp(z) s = Add(one, e) y = Div(x, s) }",
        "{ s = Mul(z, z) t = Add(s, one) y = Div(x, t) }",
        "{ y = Div(x, one) }",
        "{ k = Shape(x) f = Cast<to=1>(k) y = Div(x, f) }",
    ],
)
def test_quotients_by_what_is_none(text: str) -> None:
    kept = "<float[1] one = {3.0}, int64[1] a = {0}>"
    model = model_of(f"(float[1] x, float[1] z) => (float[1] y) {kept} {text}")
    keep_special_numbers(model)
    assert "Less" not in {n.op_type for n in model.graph}


def test_a_nan_is_true() -> None:
    model = model_of("(float[N] x) => (bool[N] y) { y = Cast<to=9>(x) }")
    x = torch.tensor(NUMBERS)
    _check(model, {"x": x}, x.bool())


@pytest.mark.parametrize("mean", ["m", ""], ids=["both", "one"])
def test_a_layer_norm_with_its_moments(mean: str) -> None:
    returned = f"float[3,5] y, {f'float[3,1] {mean}, ' if mean else ''}float[3,1] i"
    moments = f"y, {mean}, i" if mean else "y, , i"
    model = model_of(
        f"""(float[3,5] x, float[5] w, float[5] b) => ({returned}) {{
            {moments} = LayerNormalization<epsilon=0.001>(x, w, b)
        }}"""
    )
    x, w, b = torch.randn(3, 5), torch.randn(5), torch.randn(5)
    feeds = {"x": x.numpy(), "w": w.numpy(), "b": b.numpy()}
    assert keep_special_numbers(model) == 1
    assert "LayerNormalization" not in {n.op_type for n in model.graph}
    expected = torch.native_layer_norm(x, [5], w, b, 0.001)
    wanted = expected if mean else (expected[0], expected[2])
    for got, its in zip(run_onnxruntime(ir.to_proto(model), feeds), wanted, strict=True):
        np.testing.assert_allclose(got, its.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "text",
    [
        "(float[3,5] x, float[5] w) => (float[3,5] y) { y = LayerNormalization(x, w) }",
        "(double[N] x) => (double[N] y) { y = Relu(x) }",
        "(float[N] x) => (double[N] y) { y = Cast<to=11>(x) }",
        "(float[N] x) => (float[N] y) { y = Max(x) }",
        "(float[N] x) => (float[N] y) { y = Tanh(x) }",
    ],
)
def test_what_stays(text: str) -> None:
    assert keep_special_numbers(model_of(text)) == 0


def test_all_of_them_are_tried() -> None:
    assert OF_ONE.keys() | OF_TWO.keys() | {"Cast", "LayerNormalization"} == KEEPING.keys()


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div", "Pow"])
@pytest.mark.parametrize("text", ["{op}(v, z)", "{op}(z, v)"])
def test_ranks(op: str, text: str) -> None:
    """OpenVINO 2026.4 gives ``[M,N]`` for the sum of a transposed matrix and ``[1,1,1]``."""
    model = model_of(
        f"""(float[N,M] x, float[1,1,1] z) => (float[1,M,N] y) {{
            v = Transpose(x)
            y = {text.format(op=op)}
        }}"""
    )
    x, z = torch.rand(2, 3) + 1, torch.rand(1, 1, 1) + 1
    feeds = {"x": x.numpy(), "z": z.numpy()}
    before = run_onnxruntime(ir.to_proto(model), feeds)
    assert keep_ranks(model) == 1
    assert all(len(v.shape) == 3 for v in next(iter(model.graph.outputs)).producer().inputs)
    assert keep_ranks(model) == 0
    np.testing.assert_array_equal(run_onnxruntime(ir.to_proto(model), feeds), before)


@pytest.mark.parametrize("sizes", ["1", "2", "1,2", "N,M"])
def test_ranks_that_stay(sizes: str) -> None:
    model = model_of(f"(float[N,M] x, float[{sizes}] z) => (float[N,M] y) {{ y = Add(x, z) }}")
    assert keep_ranks(model) == 0
