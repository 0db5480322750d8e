from __future__ import annotations

import math

import torch

from tests.export.cases import Case, T, table_test

INT = torch.tensor([7, -7, 6, -6, 0, 1])
J = torch.tensor([3, -3, 2, -2, 5, -1])
X = torch.tensor([1.0, -1.0, 5.5, -5.5, 0.0, 7.0, math.inf, 3.0])
Y = torch.tensor([0.1, 0.1, 2.0, -2.0, 3.0, 0.0, 2.0, -math.inf])
LOWEST = torch.tensor([-(2**63), -(2**63) + 1, 2**63 - 1, -(2**31)])
MINUS_ONES = torch.tensor([-1, -1, -1, -1])
BYTE = torch.tensor([127, -128, 5], dtype=torch.int32)


# NOTE: the processor stops a program that divides the lowest integer by -1, and torch 2.8 lets it.


def _opposite(a: torch.Tensor, b: torch.Tensor | int) -> torch.Tensor:
    return -a


def _nothing(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(a)


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
    *(
        Case(f"aten::{op}", (LOWEST, MINUS_ONES), reference=expected)
        for op, expected in (
            ("floor_divide", _opposite),
            ("remainder.Tensor", _nothing),
            ("fmod.Tensor", _nothing),
        )
    ),
    Case("aten::floor_divide", (LOWEST.int(), MINUS_ONES.int()), reference=_opposite),
    Case("aten::floor_divide.Scalar", (LOWEST, -1), reference=_opposite),
    Case("aten::floor_divide.Scalar", (INT, 2.5)),
    Case("aten::floor_divide", (torch.tensor([True, False]), J[:2])),
    Case("aten::floor_divide", (torch.tensor([200, 7], dtype=torch.uint8), J[:2].to(torch.int8))),
    Case("aten::div.Tensor_mode", (X.half()[:, None], Y.half()), {"rounding_mode": "trunc"}),
    Case("aten::div.Tensor_mode", (X.half()[:, None], Y.half()), {"rounding_mode": "floor"}),
    Case(
        "aten::div.Tensor_mode",
        (torch.tensor([1.0, -0.0, 0.0]), torch.tensor([math.inf, 2, -3])),
        {"rounding_mode": "floor"},
    ),
]


test_op = table_test(CASES)
