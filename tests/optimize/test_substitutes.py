"""Nodes with a wrong kernel are computed by others, and give the numbers that torch gives."""

from __future__ import annotations

import itertools
import math

import numpy as np
import onnx_ir as ir
import pytest
import torch

from dort_rewriter.optimize.provider_fit import SUBSTITUTED, IsWrong, substitute
from dort_rewriter.runtime.kernel_query import is_wrong
from tests.optimize.rewrites import model_of, run_onnxruntime

OWN_OR_STANDARD = pytest.mark.parametrize("own", [False, True], ids=["standard", "own"])
TORCH = {
    "Ceil": torch.ceil,
    "Erf": torch.erf,
    "Exp": torch.exp,
    "Floor": torch.floor,
    "Log": torch.log,
    "Relu": torch.relu,
    "Sigmoid": torch.sigmoid,
    "Sqrt": torch.sqrt,
    "Tanh": torch.tanh,
}
OF_TWO = {"Max": np.maximum, "Min": np.minimum}
NUMBERS = [0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 0.25, 3.0, 100.0, -0.3, -2.7, 6e4]
STANDARD = {"Ceil", "Floor"}
"""Of which there are no kernels of our own."""


def always(op_type: str, dtype: ir.DataType) -> bool:
    return True


@OWN_OR_STANDARD
@pytest.mark.parametrize(
    ("op", "dtype"),
    [*itertools.product(TORCH, ["float", "float16"]), ("Ceil", "double"), ("Floor", "double")],
)
def test_special_numbers(op: str, dtype: str, own: bool) -> None:
    model = model_of(f"({dtype}[N] x) => ({dtype}[N] y) {{ y = {op}(x) }}")
    assert substitute(model, always, own_kernels=own) == 1
    assert substitute(model, is_wrong, own_kernels=own) == 0, "applying it twice changes something"
    assert any(n.domain == "dort_rewriter" for n in model.graph) is (own and op not in STANDARD)
    for repeats in (1, 4):
        x = torch.tensor(NUMBERS * repeats, dtype=getattr(torch, dtype))
        for part in (x, x[:1], x[4:5]):
            (got,) = run_onnxruntime(ir.to_proto(model), {"x": part.numpy()})
            expected = TORCH[op](part).numpy()
            np.testing.assert_allclose(got, expected, rtol=2e-3 if dtype == "float16" else 1e-6)
            signs = ~np.isnan(expected)
            assert (np.signbit(got) == np.signbit(expected))[signs].all()


@OWN_OR_STANDARD
@pytest.mark.parametrize("dtype", ["float", "double"])
def test_the_logarithm_of_a_denormal_number(own: bool, dtype: str) -> None:
    model = model_of(f"({dtype}[N] x) => ({dtype}[N] y) {{ y = Log(x) }}")
    substitute(model, is_wrong, own_kernels=own)
    least = torch.finfo(getattr(torch, dtype)).tiny
    x = torch.tensor([least / 16, least, 0.0] * 11, dtype=getattr(torch, dtype))
    (got,) = run_onnxruntime(ir.to_proto(model), {"x": x.numpy()})
    np.testing.assert_allclose(got, x.log().numpy(), rtol=1e-6)


@OWN_OR_STANDARD
@pytest.mark.parametrize("wrong", [always, is_wrong], ids=["replaced", "if need be"])
def test_exponentials_of_float64_may_be_zero(wrong: IsWrong, own: bool) -> None:
    model = model_of(
        "(double[N,M] x) => (double[N,M] y, double[N,M] z) { y = Exp(x) z = Softmax(x) }"
    )
    substitute(model, wrong, own_kernels=own)
    row = [0.0, -746.0, -1000.0, -math.inf]
    x = torch.tensor([row * 9, [math.nan] * 36, [-math.inf] * 36, [math.inf] * 36]).double()
    for got, expected in zip(
        run_onnxruntime(ir.to_proto(model), {"x": x.numpy()}),
        (x.exp(), x.softmax(-1)),
        strict=True,
    ):
        np.testing.assert_allclose(got, expected, rtol=1e-12)


@OWN_OR_STANDARD
def test_what_others_read_and_the_model_returns(own: bool) -> None:
    model = model_of(
        "(float[N] x) => (float[N] y, float[N] z) { a = Sqrt(x) y = Sqrt(a) z = Neg(y) }"
    )
    assert substitute(model, always, own_kernels=own) == 2
    y, z = run_onnxruntime(ir.to_proto(model), {"x": np.float32([16.0, np.inf] * 8)})
    np.testing.assert_array_equal(y, [2.0, np.inf] * 8)
    np.testing.assert_array_equal(z, -y)


def test_right_kernels_stay() -> None:
    model = model_of(
        "(double[N] x, float[N] z) => (double[N] y, float[N] w) {y = Sqrt(x) w = Exp(z)}"
    )
    assert substitute(model, is_wrong, own_kernels=True) == 0
    assert [n.op_type for n in model.graph] == ["Sqrt", "Exp"]


@pytest.mark.parametrize("op", TORCH)
def test_the_kernels_at_hand_are_tried(op: str) -> None:
    """What is said to be right is."""
    model = model_of(f"(float[N] x) => (float[N] y) {{ y = {op}(x) }}")
    x = torch.tensor(NUMBERS * 4)
    (got,) = run_onnxruntime(ir.to_proto(model), {"x": x.numpy()})
    found, expected = torch.from_numpy(got), TORCH[op](x)
    same = torch.allclose(found, expected, equal_nan=True)
    same &= bool((found.signbit() == expected.signbit())[~expected.isnan()].all())
    assert same or is_wrong(op, ir.DataType.FLOAT)


@OWN_OR_STANDARD
@pytest.mark.parametrize("op", ["Sigmoid", "Tanh"])
def test_nothing_is_beyond_one(op: str, own: bool) -> None:
    model = model_of(f"(float[N] x) => (float[N] y) {{ y = {op}(x) }}")
    substitute(model, is_wrong, own_kernels=own)
    x = torch.linspace(-60, 60, 480_001)
    (got,) = run_onnxruntime(ir.to_proto(model), {"x": x.numpy()})
    assert abs(got).max() == 1
    np.testing.assert_allclose(got, TORCH[op](x.double()), rtol=1e-5, atol=0)


def test_every_substitute_is_tried() -> None:
    assert TORCH.keys() | OF_TWO.keys() | {"PRelu", "Softmax"} == SUBSTITUTED.keys()


@OWN_OR_STANDARD
@pytest.mark.parametrize("wrong", [always, is_wrong], ids=["replaced", "if need be"])
def test_infinite_numbers_keep_their_slope(wrong: IsWrong, own: bool) -> None:
    model = model_of("(float[N] x, float[1] slope) => (float[N] y) { y = PRelu(x, slope) }")
    substitute(model, wrong, own_kernels=own)
    x = torch.tensor(NUMBERS)
    (got,) = run_onnxruntime(
        ir.to_proto(model), {"x": x.numpy(), "slope": np.full(1, 0.25, np.float32)}
    )
    np.testing.assert_array_equal(got, torch.prelu(x, torch.tensor([0.25])).numpy())


@OWN_OR_STANDARD
@pytest.mark.parametrize("wrong", [always, is_wrong], ids=["replaced", "if need be"])
@pytest.mark.parametrize("op", OF_TWO)
def test_numbers_repeated_along_either_axis(op: str, wrong: IsWrong, own: bool) -> None:
    model = model_of(f"(float16[N,K] x, float16[M,L] y) => (float16[A,B] z) {{ z = {op}(x, y) }}")
    substitute(model, wrong, own_kernels=own)
    rng = np.random.default_rng(0)
    for shapes in (((4, 1), (1, 5)), ((4, 1), (4, 5)), ((1, 5), (4, 5)), ((4, 5), (1, 1))):
        x, y = (rng.standard_normal(s).astype(np.float16) for s in shapes)
        x[0, 0] = np.nan
        for given in ((x, y), (y, x)):
            feeds = dict(zip("xy", given, strict=True))
            (got,) = run_onnxruntime(ir.to_proto(model), feeds)
            np.testing.assert_array_equal(got, OF_TWO[op](x, y))
