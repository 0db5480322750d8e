from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from tests.export.cases import Case, T, run, table_test

X = T(3, 4)
P = X.abs() + 0.1
INT = T(3, 4, dtype=torch.int64)
SMALL = torch.tensor([1e-8, -1e-5, 1e-3, 0.5, -0.9, 3.0, 1e8, math.inf, -1.0, math.nan, 0.0])
FRACTION = torch.tensor([0.0, 0.1, 0.5, 0.9, 1.0])

POWERS = torch.tensor([2.0**k for k in range(-149, 128)])

CASES = [
    *(
        Case("aten::pow.Tensor_Tensor", (torch.tensor([3, -3, 2, 1, -1, 0], dtype=d)[:, None], e))
        for d, e in (
            (torch.int8, torch.tensor([0, 1, 2, 7, 127, -1], dtype=torch.int8)),
            (torch.int16, torch.tensor([0, 3, 2**15 - 1, -3], dtype=torch.int16)),
            (torch.int32, torch.tensor([5, 2**31 - 1, -2], dtype=torch.int32)),
            (torch.int64, torch.tensor([40, 2**40 + 1, 2**63 - 1, -(2**40)])),
        )
    ),
    Case("aten::pow.Tensor_Scalar", (torch.tensor([3, -3, 2], dtype=torch.int8), 5)),
    Case("aten::pow.Tensor_Scalar", (torch.tensor([3, -3, 2], dtype=torch.int16), 2**15 - 1)),
    Case("aten::pow.Scalar", (3, torch.tensor([2**40 + 1, 5, -1]))),
    *(
        Case("aten::frexp.Tensor", (x,))
        for x in (POWERS, -POWERS * 1.5, torch.tensor([0.0, math.inf, -math.inf, math.nan]))
    ),
    *(Case("aten::pow.Tensor_Scalar", (X, e)) for e in (0, 1, 2, 3, 4, 5, -1, -2, 2.0)),
    *(Case("aten::pow.Tensor_Scalar", (P, e)) for e in (0.5, -0.5, 1.7, -3)),
    *(Case("aten::pow.Tensor_Scalar", (INT, e)) for e in (0, 1, 2, 7, 2.5)),
    Case("aten::pow.Tensor_Scalar", (T(3, dtype=torch.bool), 2)),
    Case("aten::pow.Tensor_Tensor", (P, X[0])),
    Case("aten::pow.Tensor_Tensor", (INT[:, :1], torch.tensor([0, 1, 5, -1, -2, 62, 131]))),
    Case("aten::pow.Tensor_Tensor", (torch.tensor([3, 7]), torch.tensor([39, 22]))),
    Case("aten::pow.Scalar", (2, X)),
    Case("aten::pow.Scalar", (3, INT + 5)),
    Case("aten::pow.Scalar", (2.5, INT)),
    Case("aten::rsqrt", (P,)),
    Case("aten::exp2", (X,)),
    Case("aten::exp2", (INT,)),
    Case("aten::expm1", (SMALL,)),
    Case("aten::log1p", (SMALL,)),
    Case("aten::log2", (P,)),
    *(
        Case(name, (T(3, 4, dtype=t), T(4, dtype=t).abs()))
        for name in ("aten::xlogy.Tensor", "aten::special_xlog1py")
        for t in (torch.float32, torch.float64)
    ),
    Case("aten::xlogy.Tensor", (torch.zeros(3), torch.tensor([0.0, -1.0, float("nan")]))),
    Case("aten::xlogy.Scalar_Self", (0, torch.tensor([0.0, -1.0, float("nan")]))),
    Case("aten::xlogy.Scalar_Other", (T(3, dtype=torch.int64), 2.5)),
    Case("aten::special_xlog1py", (torch.zeros(3), torch.tensor([-1.0, -2.0, float("nan")]))),
    Case("aten::special_xlog1py.self_scalar", (2, T(3, 4).abs())),
    Case("aten::special_xlog1py.other_scalar", (T(3, 4), 0.5)),
    Case("aten::log10", (INT.abs() + 1,)),
    Case("aten::logit", (FRACTION,)),
    Case("aten::logit", (FRACTION, 0.2)),
    Case("aten::logit", (FRACTION.half(), 0.1234567)),
    Case("aten::logaddexp", (SMALL, SMALL.flip(0))),
    Case(
        "aten::logaddexp",
        (torch.tensor([-math.inf, math.inf]), torch.tensor([-math.inf, math.inf])),
    ),
]


@pytest.mark.parametrize("function", [torch.expm1, torch.log1p])
def test_small_numbers_keep_their_digits(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = torch.tensor([1e-10, -1e-8, 3e-7, 1e-4])
    traced = make_fx(function, tracing_mode="fake")(x)
    (got,) = run(traced, [x], 18)
    torch.testing.assert_close(got, function(x), rtol=1e-6, atol=0)


test_op = table_test(CASES)
