from __future__ import annotations

import math

import torch

from tests.export.cases import Case, T, table_test

X = torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5, 2.4, -2.6, math.nan, math.inf])
INT = T(2, 3, dtype=torch.int64)

CASES = [
    *(Case(f"aten::{n}", (x,)) for n in ("ceil", "floor", "trunc", "round") for x in (X, INT)),
    Case("aten::frac", (X,)),
    *(Case("aten::round.decimals", (T(3, 4) * 100,), {"decimals": d}) for d in (-2, 0, 1)),
]


test_op = table_test(CASES)
