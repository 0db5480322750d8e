from __future__ import annotations

import math

import torch

from tests.export.cases import Case, T, table_test

X = T(2, 3, 4)
INT = T(2, 3, dtype=torch.int64)
BOOL = torch.tensor([[True, False, True], [False, False, False]])
ODD = torch.tensor([[1.0, math.nan, 2.0], [math.inf, 3.0, -math.inf], [-1.0, 0.5, 0.0]])

LARGE = torch.tensor([[2**53, 1, 2**62], [1, 2**62, 2**62], [-(2**60), 2**53 + 1, 3]])

CASES = [
    *(
        Case(f"aten::{name}", (LARGE if dims else LARGE[0], *dims), kwargs)
        for name, *dims in (
            ("sum",),
            ("nansum",),
            ("prod",),
            ("sum.dim_IntList", [0]),
            ("sum.dim_IntList", [1], True),
            ("sum.dim_IntList", [0, 1]),
            ("sum.dim_IntList", [0, 1], True),
            ("prod.dim_int", 0),
            ("prod.dim_int", -1, True),
        )
        for kwargs in ({}, {"dtype": torch.int32}, {"dtype": torch.int8})
    ),
    Case("aten::sum.dim_IntList", (torch.stack([LARGE, LARGE + 1, LARGE]), [0, 2])),
    Case("aten::sum.dim_IntList", (torch.stack([LARGE, LARGE + 1]), [1], True)),
    Case("aten::prod.dim_int", (torch.stack([LARGE, LARGE + 1]), 1)),
    Case("aten::trace", (LARGE,)),
    Case("aten::count_nonzero.dim_IntList", (torch.stack([LARGE, LARGE * 0]), [0, 1])),
    *(
        Case(f"aten::{name}", (T(3, 4, 0, dtype=torch.int64), *dims), dynamic=False)
        for name, *dims in (
            ("sum.dim_IntList", [-1]),
            ("sum.dim_IntList", [0, 2], True),
            ("sum.dim_IntList", [0]),
            ("prod.dim_int", -1),
            ("prod.dim_int", 1, True),
            ("sum",),
            ("prod",),
        )
    ),
    *(
        Case(f"aten::{name}", (x,))
        for name in ("sum", "prod", "max", "min", "any", "all")
        for x in (X, INT, T(), BOOL)
    ),
    *(
        Case(f"aten::{name}", (X, *dims))
        for name in ("sum.dim_IntList", "mean.dim")
        for dims in (([1],), ([-1], True), ([0, -1],), ([],), (None,), (None, True))
    ),
    *(
        Case(f"aten::{name}", (X, *dims))
        for name in ("logsumexp", "nansum")
        for dims in (([1],), ([-1], True), ([0, -1],))
    ),
    Case("aten::sum", (INT,), {"dtype": torch.float64}),
    Case("aten::sum.dim_IntList", (BOOL, [1])),
    Case("aten::sum.dim_IntList", (T(dtype=torch.float32), [0])),
    Case("aten::sum.dim_IntList", (T(2, 0), [1])),
    *(
        Case(f"aten::{name}", (T(3, 4, 0), *dims), dynamic=False)
        for name in ("sum.dim_IntList", "mean.dim", "logsumexp", "nansum", "any.dims", "all.dims")
        for dims in (([-1],), ([-1], True), ([0, 2],), ([0, 2], True))
    ),
    *(
        Case("aten::linalg_vector_norm", (T(3, 4, 0), order, [-1]), dynamic=False)
        for order in (0, 1, 2, 3)
    ),
    Case("aten::prod.dim_int", (T(3, 4, 0), -1), dynamic=False),
    Case("aten::var.correction", (T(3, 4, 0), [-1]), {"correction": 0}, dynamic=False),
    Case("aten::sum.dim_IntList", (X, [0]), {"dtype": torch.float64}),
    Case("aten::nansum", (ODD, [0])),
    Case("aten::sum", (INT,), {"dtype": torch.bool}),
    Case("aten::prod", (BOOL,), {"dtype": torch.bool}),
    Case("aten::mean", (X,)),
    Case("aten::mean", (INT,), {"dtype": torch.float32}),
    Case("aten::mean.dim", (T(2, 0), [1]), dynamic=False),
    Case("aten::mean.dim", (T(), [-1], True)),
    Case("aten::prod", (INT,), {"dtype": torch.float32}),
    *(Case("aten::prod.dim_int", (x, -1, k)) for x in (X, INT, BOOL) for k in (False, True)),
    *(
        Case(f"aten::{name}.correction", (X, dim), {"correction": c, "keepdim": k})
        for name in ("var", "std", "var_mean", "std_mean")
        for dim, c, k in (
            (None, None, False),
            ([-1], 0, True),
            ([0, 2], 1, False),
            ([1], 2.5, True),
        )
    ),
    Case("aten::var.correction", (T(1, 3), [0])),
    Case("aten::var.correction", (X, [0]), {"correction": 2}),
    *(
        Case("aten::linalg_vector_norm", (X, p, *dims))
        for p in (0, 1, 2, 3, 0.5, -2, math.inf, -math.inf)
        for dims in ((), ([1],), ([0, -1], True))
    ),
    Case("aten::linalg_vector_norm", (X,), {"dtype": torch.float64}),
    Case("aten::linalg_vector_norm", (T(), 2)),
    Case("aten::logsumexp", (torch.tensor([[1000.0, 999.0], [-math.inf, -math.inf]]), [1])),
    *(
        Case(f"aten::{name}", (x, dim, k))
        for name in ("amax", "amin")
        for x, dim, k in (
            (X, [1], False),
            (X, [], True),
            (X, [0, -1], False),
            (INT, [0], False),
            (BOOL, [1], True),
            (ODD, [0], False),
            (ODD, [1], False),
            (T(), [0], True),
        )
    ),
    Case("aten::max", (ODD,)),
    Case("aten::aminmax", (X,)),
    Case("aten::aminmax", (ODD,), {"dim": -1, "keepdim": True}),
    *(
        Case(f"aten::{name}.dim", (x, -1, k))
        for name in ("any", "all")
        for x in (BOOL, INT, ODD)
        for k in (False, True)
    ),
    *(
        Case(f"aten::{name}.dims", (BOOL, dims, k))
        for name in ("any", "all")
        for dims in ([0, 1], [1], None)
        for k in (False, True)
    ),
    *(Case(f"aten::{name}", (torch.zeros(0, 2),)) for name in ("any", "all")),
    Case("aten::any", (torch.tensor([0, 3], dtype=torch.uint8),)),
    Case("aten::count_nonzero", (INT,)),
    Case("aten::count_nonzero", (ODD, -1)),
    Case("aten::count_nonzero.dim_IntList", (BOOL, [0, 1])),
    Case("aten::count_nonzero.dim_IntList", (BOOL, [-1])),
]


test_op = table_test(CASES)
