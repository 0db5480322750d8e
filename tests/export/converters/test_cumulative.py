from __future__ import annotations

import math

import torch

from tests.export.cases import Case, T, table_test

X = T(3, 5)
NAN, INF = math.nan, math.inf
ODD = torch.tensor([[1.0, 1.0, NAN, 2.0, NAN], [INF, 3.0, -INF, 3.0, INF]])
INT = T(2, 7, dtype=torch.int64)

CASES = [
    *(Case("aten::cumsum", (x, d)) for x in (X, INT, T(2, 3, dtype=torch.bool)) for d in (0, -1)),
    Case("aten::cumsum", (T(), 0)),
    Case("aten::cumsum", (INT, 1), {"dtype": torch.float32}),
    *(Case("aten::cumprod", (x, d)) for x in (X, INT) for d in (0, -1)),
    Case("aten::cumprod", (T(), 0)),
    Case("aten::cumprod", (T(2, 1), 1), {"dtype": torch.float64}),
    Case("aten::cumprod", (T(2, 5).half(), 1)),
    *(Case("aten::cumprod", (torch.ones(n, 2), 0)) for n in (0, 2, 8, 9)),
    *(Case("aten::logcumsumexp", (x, d)) for x in (X, ODD) for d in (0, -1)),
    *(
        Case(f"aten::{name}", (x, d))
        for name in ("cummax", "cummin")
        for x in (X, ODD, INT, T(2, 5, dtype=torch.bool))
        for d in (0, -1)
    ),
]


test_op = table_test(CASES)
