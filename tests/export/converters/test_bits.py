from __future__ import annotations

import math

import torch

from tests.export.cases import Case, T, table_test

INT = torch.tensor([0, 1, -1, 5, -6, 2**40, -(2**63)])
S = torch.tensor([5, -6, 2**30], dtype=torch.int32)
B = torch.tensor([True, False])
PLACES = torch.tensor([0, 1, 3, 31, 32, 63, 64, -1])

CASES = [
    *(
        Case(f"aten::logical_{name}", (a, b))
        for name in ("and", "or", "xor")
        for a, b in ((B[:, None], B), (INT[:3], T(3)), (torch.tensor([0.5, 0.0, math.nan]), T(3)))
    ),
    Case("aten::logical_not", (torch.tensor([0.5, 0.0, math.nan]),)),
    Case("aten::logical_not", (B,)),
    Case("aten::bitwise_not", (B,)),
    Case("aten::bitwise_not", (INT,)),
    *(
        case
        for name in ("and", "or", "xor")
        for case in (
            Case(f"aten::bitwise_{name}.Tensor", (INT[:, None], INT)),
            Case(f"aten::bitwise_{name}.Tensor", (S, INT[:3])),
            Case(f"aten::bitwise_{name}.Tensor", (B[:, None], B)),
            Case(f"aten::bitwise_{name}.Scalar", (INT, 6)),
            Case(f"aten::bitwise_{name}.Scalar_Tensor", (6, INT)),
        )
    ),
    *(
        case
        for name in ("left", "right")
        for case in (
            Case(f"aten::bitwise_{name}_shift.Tensor", (INT[:, None], PLACES)),
            Case(f"aten::bitwise_{name}_shift.Tensor", (S[:, None], PLACES.int())),
            Case(f"aten::bitwise_{name}_shift.Tensor_Scalar", (INT, 3)),
            Case(f"aten::bitwise_{name}_shift.Scalar_Tensor", (-5, PLACES)),
            Case(f"aten::__{name[0]}shift__.Tensor", (INT, INT.abs() % 5)),
            Case(f"aten::__{name[0]}shift__.Scalar", (INT, 2)),
        )
    ),
]


test_op = table_test(CASES)
