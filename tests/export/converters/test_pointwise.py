from __future__ import annotations

import math

import pytest
import torch

from dort_rewriter.backends.onnxrt import OrtBackend
from dort_rewriter.options import OrtBackendOptions
from tests.export.cases import Case, T, table_test

NAN, INF = math.nan, math.inf
INT = T(2, 3, dtype=torch.int64)
BOOL = T(2, 3, dtype=torch.bool)
POSITIVE = T(2, 3).abs() + 0.1
UNIT = T(2, 3).tanh()
ODD = torch.tensor([NAN, INF, -INF, 0.0, -0.0, 1.5, -2.0])

CASES = [
    Case("aten::angle", (torch.tensor([float("nan"), -1.0, 1.0, -0.0, float("-inf")]),)),
    Case("aten::angle", (torch.tensor([-1, 0, 2]),)),
    *(
        Case(f"aten::{name}", (x,))
        for name in ("cos", "cosh", "erf", "exp", "neg", "sigmoid", "sin", "sinh", "tan", "tanh")
        for x in (T(2, 3), T())
    ),
    *(Case(f"aten::{name}", (UNIT,)) for name in ("acos", "asin", "atan", "asinh", "atanh")),
    Case("aten::acosh", (POSITIVE + 1,)),
    *(Case(f"aten::{name}", (POSITIVE,)) for name in ("log", "reciprocal", "sqrt")),
    *(Case(f"aten::{name}", (INT,)) for name in ("exp", "neg", "sigmoid", "sin")),
    Case("aten::exp", (T(0, 3),)),
    Case("aten::add.Tensor", (T(2, 3), T(3)), {"alpha": 2}),
    Case("aten::add.Tensor", (T(2, 3), INT)),
    Case("aten::add.Tensor", (BOOL, BOOL.flip(0))),
    Case("aten::add.Scalar", (INT, 2.5)),
    Case("aten::add.Scalar", (T(2, 3), 2)),
    Case("aten::sub.Tensor", (T(2, 3), T()), {"alpha": 0.5}),
    Case("aten::sub.Scalar", (INT, 2)),
    Case("aten::rsub.Scalar", (T(2, 3), 2, 3)),
    Case("aten::mul.Tensor", (BOOL, BOOL.flip(0))),
    Case("aten::mul.Tensor", (T(2, 1), INT)),
    Case("aten::mul.Scalar", (BOOL, 2.5)),
    Case("aten::addcmul", (T(2, 3), T(2, 1), T(3)), {"value": 0.5}),
    Case("aten::addcmul", (INT, INT, INT), {"value": 2}),
    Case("aten::addcdiv", (T(2, 3), T(2, 1), POSITIVE), {"value": 0.5}),
    Case("aten::lerp.Scalar", (T(2, 3), T(3), 0.25)),
    Case("aten::lerp.Scalar", (T(2, 3), T(3), 1.0)),
    Case("aten::lerp.Tensor", (T(2, 3), T(3), T(2, 3))),
    Case("aten::abs", (T(2, 3),)),
    Case("aten::abs", (INT,)),
    Case("aten::sign", (ODD,)),
    Case("aten::sign", (INT,)),
    Case("aten::sign", (BOOL,)),
    Case("aten::sgn", (ODD,)),
    Case("aten::atan2", (ODD[:, None], ODD)),
    Case("aten::hypot", (ODD[:, None], ODD)),
    Case("aten::hypot", (T(2, 3) * 1e30, T(2, 3) * 1e29)),
    Case("aten::copysign.Tensor", (T(6, 1), ODD[1:])),
    Case("aten::copysign.Scalar", (T(2, 3), -0.0)),
    Case("aten::copysign.Scalar", (T(2, 3), 1.0)),
    *(
        Case("aten::signbit", (x,))
        for x in (ODD, T(3, dtype=torch.int64), T(3, dtype=torch.uint8), T(3, dtype=torch.bool))
    ),
]


test_op = table_test(CASES)


@pytest.mark.parametrize("number", [0.1, 3, 1e5, 0.25, 1e300, math.inf, math.nan])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_numbers_beside_16_bits(dtype: torch.dtype, number: float) -> None:
    """Bit for bit: eager rounds the numbers that it adds, not those that it multiplies with.

    Powers are rounded from others in the last place of float32.
    """

    def compute(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        factor = min(number, 100.5) if number == number else 1.5  # torch refuses larger ones
        sums = torch.add(x, x, alpha=factor), torch.sub(x, x.abs(), alpha=factor)
        powers = x.abs() ** factor, x.abs() ** x
        products = x * number, number * x, x / number, number / x
        return *products, x + number, number - x, *sums, *powers

    torch._dynamo.reset()
    backend = OrtBackend(OrtBackendOptions(fallback=False, placement={"*": "onnxruntime"}))
    x = T(40, 64).to(dtype)  # whole vectors: torch rounds alpha * y for the elements left over
    got = torch.compile(compute, backend=backend, fullgraph=True)(x)
    unit = torch.finfo(dtype).eps
    for i, (ours, eager) in enumerate(zip(got, compute(x), strict=True)):
        rtol = 0.0 if i < 8 else unit
        torch.testing.assert_close(ours, eager, rtol=rtol, atol=0, equal_nan=True)
