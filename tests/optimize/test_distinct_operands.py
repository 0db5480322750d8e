"""Products of a value with itself run, whatever onnxruntime makes of the transpositions."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

from dort_rewriter.optimize.provider_fit import separate_operands
from dort_rewriter.runtime.kernel_query import loses_factors
from tests.optimize.rewrites import model_of

TURNED = "t = Transpose<perm=[0, 2, 1]>(x)"
X = np.arange(18, dtype=np.float32).reshape(2, 3, 3)
SQUARES = {
    "itself": f"{TURNED} y = MatMul(t, t)",
    "fused": f"{TURNED} y = com.microsoft.FusedMatMul<transA=1>(t, t)",
    "turned": f"{TURNED} s = Transpose<perm=[0, 2, 1]>(t) y = MatMul(s, t)",
    "scaled": f"{TURNED} s = Mul(t, h) y = MatMul(t, s)",
    "cast": f"{TURNED} i = Cast<to=7>(t) c = Cast<to=1>(i) y = MatMul(c, c)",
}


@pytest.mark.parametrize("read", ["", " n = Neg(t)"], ids=["alone", "read"])
@pytest.mark.parametrize("square", SQUARES.values(), ids=SQUARES)
def test_a_value_times_itself(square: str, read: str) -> None:
    results = "float[2,3,3] y, float[2,3,3] n" if read else "float[2,3,3] y"
    model = model_of(f"(float[2,3,3] x) => ({results}) <float h = {{0.5}}> {{ {square}{read} }}")
    plain = _run(model, optimized=False)
    assert separate_operands(model) == 1
    assert separate_operands(model) == 0, "applying it twice changes something"
    np.testing.assert_allclose(_run(model, optimized=True), plain)


@pytest.mark.parametrize(
    "product",
    [
        f"{TURNED} y = MatMul(t, x2)",
        "t = Mul(x, h) s = Mul(x2, h) y = MatMul(t, s)",
        "y = MatMul(x, x)",
    ],
)
def test_other_products_stay(product: str) -> None:
    signature = "(float[2,3,3] x, float[2,3,3] x2) => (float[2,3,3] y)"
    model = model_of(f"{signature} <float h = {{0.5}}> {{ {product} }}")
    assert separate_operands(model) == 0


def test_only_older_releases_lose_factors() -> None:
    release = tuple(map(int, onnxruntime.__version__.split(".")[:2]))
    if release <= (1, 19):
        assert loses_factors()
    if release >= (1, 32):
        assert not loses_factors()


def _run(model: ir.Model, *, optimized: bool) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        ir.to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    y: np.ndarray = session.run(["y"], {"x": X})[0]
    return y
