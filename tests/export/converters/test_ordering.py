from __future__ import annotations

import math

import torch

from tests.export.cases import Case, T, table_test

X = T(3, 5)
TIES = torch.tensor([[2.0, 1.0, 2.0, 0.0, 1.0], [5.0, 5.0, 5.0, 5.0, 5.0]])
ODD = torch.tensor([[1.0, math.nan, 2.0, math.nan, -1.0], [3.0, 0.0, -math.inf, 4.0, 0.0]])
INT = T(3, 5, dtype=torch.int64)
DISTINCT = torch.tensor([[3.0, 1.0, 2.0, 9.0], [7.0, 5.0, 8.0, 6.0]])
EXTREME = torch.tensor(
    [[math.nan, math.inf, 1.0, -math.inf], [math.inf, math.nan, -math.inf, 0.0]]
)
ANY_TIE = "torch returns any of the equal elements"

CASES = [
    *(
        Case(f"aten::{name}", (x, *rest))
        for name in ("argmax", "argmin")
        for x in (X, TIES, ODD, INT, T())
        for rest in ((), (None, True), (0,), (-1, True))
    ),
    *(
        Case(f"aten::{name}.dim", (x, *rest))
        for name in ("max", "min")
        for x in (X, TIES, ODD, INT, T(), T(2, 3, dtype=torch.bool))
        for rest in ((0,), (-1, True))
    ),
    *(Case("aten::topk", (x, 3, *rest)) for x in (X, DISTINCT) for rest in ((), (-1, False))),
    *(
        Case(f"aten::{name}", (EXTREME.to(t), *rest))
        for t in (torch.float32, torch.float64, torch.float16)
        for name, rest in (
            *(("topk", (k, -1, largest)) for k in (2, 4) for largest in (False, True)),
            *(("sort", (-1, descending)) for descending in (False, True)),
            *(("kthvalue", (k,)) for k in (1, 3, 4)),
            *((f"{extreme}.dim", (-1,)) for extreme in ("max", "min")),
            *((extreme, (-1,)) for extreme in ("argmax", "argmin")),
        )
    ),
    *(Case("aten::topk", (x, 3), outputs=(0,), reason=ANY_TIE) for x in (TIES, INT)),
    Case("aten::kthvalue", (INT, 3), outputs=(0,), reason=ANY_TIE),
    Case("aten::sort", (T(2, 5, dtype=torch.bool),)),  # of few elements torch's order is stable
    Case("aten::topk", (X, 2, 0)),
    Case("aten::topk", (T(), 1)),
    *(Case("aten::sort", (X, d, w)) for d in (0, -1) for w in (False, True)),
    *(
        Case("aten::sort.stable", (x,), {"stable": True, "dim": d, "descending": w})
        for x in (TIES, ODD, INT, T(2, 5, dtype=torch.bool))
        for d in (0, -1)
        for w in (False, True)
    ),
    Case("aten::sort.stable", (T(),), {"stable": True}),
    Case("aten::kthvalue", (X, 2)),
    Case("aten::kthvalue", (DISTINCT, 3, -1, True)),
    Case("aten::kthvalue", (TIES, 2, 1), outputs=(0,), reason=ANY_TIE),
    Case("aten::median", (X,)),
    Case("aten::median", (ODD,)),
    Case("aten::median", (DISTINCT,)),
    *(
        Case(f"aten::{name}", (torch.empty(shape, dtype=dtype),))
        for name in ("median", "nanmedian")
        for shape in ((0,), (2, 0))
        for dtype in (torch.float32, torch.int64, torch.int32, torch.int8, torch.uint8)
    ),
    *(
        Case("aten::median.dim", (x, d, k))
        for x in (X, DISTINCT)
        for d, k in ((0, False), (-1, True))
    ),
    Case("aten::median.dim", (ODD, 1), outputs=(0,), reason=ANY_TIE),
    *(
        # Without NaN: torch sorts by a comparison that a NaN breaks.
        Case("aten::mode", (x, *rest), dynamic=False)
        for x in (TIES, INT, X, T(2, 5, dtype=torch.bool))
        for rest in ((), (0,), (-1, True))
    ),
    Case("aten::mode", (T(),)),
    Case("aten::nanmedian", (ODD,)),
    Case("aten::nanmedian.dim", (ODD, 1), outputs=(0,), reason=ANY_TIE),
    Case("aten::nanmedian.dim", (X, 0, True)),
]


test_op = table_test(CASES)
