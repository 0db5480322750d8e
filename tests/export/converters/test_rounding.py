from __future__ import annotations

import math

import pytest
import torch

from tests.export.cases import Case, T, check

X = torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5, 2.4, -2.6, math.nan, math.inf])
INT = T(2, 3, dtype=torch.int64)

CASES = [
    *(Case(f"aten::{n}", (x,)) for n in ("ceil", "floor", "trunc", "round") for x in (X, INT)),
    Case("aten::frac", (X,)),
    *(Case("aten::round.decimals", (T(3, 4) * 100,), {"decimals": d}) for d in (-2, 0, 1)),
]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_op(case: Case, dynamic: bool) -> None:
    if dynamic and not case.dynamic:
        return
    check(case, dynamic=dynamic)
