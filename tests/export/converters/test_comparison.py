from __future__ import annotations

import math

import torch

from tests.export.cases import Case, T, table_test

NAN, INF = math.nan, math.inf
X = torch.tensor([1.0, NAN, INF, -INF, 0.0, -2.5])
Y = torch.tensor([NAN, 1.0, INF, 3.0, -0.0, -2.5])
INT = T(2, 3, dtype=torch.int64)
B = torch.tensor([True, False, True])

CASES = [
    *(
        Case(
            f"aten::{op}", (torch.tensor([1, 3, 2, -1]), torch.tensor([2**31, 2**40, -(2**31), 0]))
        )
        for op in ("maximum", "minimum")
    ),
    *(
        case
        for name in ("eq", "ne", "lt", "le", "gt", "ge")
        for case in (
            Case(f"aten::{name}.Tensor", (X[:, None], Y)),
            Case(f"aten::{name}.Tensor", (INT, T(3))),
            Case(f"aten::{name}.Tensor", (B[:, None], B)),
            Case(f"aten::{name}.Scalar", (INT, 1)),
            Case(f"aten::{name}.Scalar", (INT, 0.5)),
            Case(f"aten::{name}.Scalar", (B, 1)),
            Case(f"aten::{name}.Scalar", (INT, True)),
            Case(f"aten::{name}.Scalar", (X, True)),
            Case(f"aten::{name}.Scalar", (B, True)),
            Case(f"aten::{name}.Scalar", (B, 0.5)),
        )
    ),
    *(
        Case(f"aten::{name}", (x,))
        for name in ("isnan", "isinf", "isposinf", "isneginf")
        for x in (X, INT)
    ),
    Case("aten::where.self", (B, T(2, 3), T())),
    Case("aten::where.self", (B, INT, T(2, 3))),
    Case("aten::where.self", (B[:, None], B, ~B)),
    Case("aten::masked_fill.Scalar", (T(2, 3), B, -INF)),
    Case("aten::masked_fill.Scalar", (INT, B, 2)),
    Case("aten::masked_fill.Scalar", (B, B, False)),
    Case("aten::masked_fill.Tensor", (T(2, 3), B, T())),
    *(
        Case(f"aten::{name}", (a, b))
        for name in ("maximum", "minimum", "fmax", "fmin")
        for a, b in ((X[:, None], Y), (INT, T(3)), (INT, INT[0]), (B[:, None], B))
    ),
    Case("aten::clamp", (X, -1, 1.5)),
    Case("aten::clamp", (X, 2, 1)),
    Case("aten::clamp", (INT, None, 1)),
    Case("aten::clamp", (INT, 0.5)),
    Case("aten::clamp.Tensor", (X[:, None], Y, None)),
    Case("aten::clamp.Tensor", (X[:, None], torch.tensor(-1.0), Y)),
    Case("aten::clamp_min", (X, -1)),
    Case("aten::clamp_max", (INT, 1)),
    *(Case(f"aten::{name}.Tensor", (B, ~B)) for name in ("clamp_min", "clamp_max")),
    Case("aten::clamp_min.Tensor", (X[:, None], Y)),
    Case("aten::clamp_max.Tensor", (X[:, None], Y)),
    Case("aten::nan_to_num", (X,)),
    Case("aten::nan_to_num", (X, 1.0, 2.0, -3.0)),
    Case("aten::nan_to_num", (INT,)),
]


test_op = table_test(CASES)
