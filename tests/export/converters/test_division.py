from __future__ import annotations

import math

import pytest
import torch

from tests.export.cases import Case, T, check

INT = torch.tensor([7, -7, 6, -6, 0, 1])
J = torch.tensor([3, -3, 2, -2, 5, -1])
X = torch.tensor([1.0, -1.0, 5.5, -5.5, 0.0, 7.0, math.inf, 3.0])
Y = torch.tensor([0.1, 0.1, 2.0, -2.0, 3.0, 0.0, 2.0, -math.inf])
BYTE = torch.tensor([127, -128, 5], dtype=torch.int32)

CASES = [
    Case("aten::div.Tensor", (INT, J), dynamic=False),  # torch 2.8 records integers
    Case("aten::div.Tensor", (T(2, 3), T())),
    Case("aten::div.Scalar", (INT, 2)),
    *(
        Case("aten::div.Tensor_mode", (a, b), {"rounding_mode": mode})
        for mode in (None, "trunc", "floor")
        for a, b in ((INT[:, None], J), (X[:, None], Y))
    ),
    Case("aten::div.Scalar_mode", (INT, -4), {"rounding_mode": "floor"}),
    Case("aten::div.Scalar_mode", (X, 0.1), {"rounding_mode": "floor"}),
    Case("aten::floor_divide", (INT[:, None], J)),
    Case("aten::floor_divide", (X[:, None], Y)),
    Case("aten::floor_divide.Scalar", (INT, -2)),
    Case("aten::floor_divide.Scalar", (torch.tensor([2**63 - 1, -(2**63) + 1]), -2)),
    Case("aten::remainder.Tensor", (INT[:, None], J)),
    Case("aten::remainder.Tensor", (X[:, None], Y)),
    Case("aten::remainder.Scalar", (INT, -4)),
    Case("aten::remainder.Scalar", (INT, 2.5)),
    Case("aten::remainder.Scalar_Tensor", (7, J)),
    Case("aten::fmod.Tensor", (INT[:, None], J)),
    Case("aten::fmod.Tensor", (X[:, None], Y)),
    Case("aten::fmod.Scalar", (X, -2)),
]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_op(case: Case, dynamic: bool) -> None:
    if dynamic and not case.dynamic:
        return
    check(case, dynamic=dynamic)
