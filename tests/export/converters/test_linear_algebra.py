from __future__ import annotations

import torch

from tests.export.cases import Case, T, table_test

INTS = torch.int64
NAN = float("nan")

CASES = [
    Case("aten::mm", (T(3, 4), T(4, 5))),
    Case("aten::mm", (T(3, 4, dtype=torch.float64), T(4, 5, dtype=torch.float64))),
    Case("aten::mm", (T(3, 4, dtype=INTS), T(4, 5, dtype=INTS))),
    Case("aten::mm", (T(3, 4, dtype=torch.int8, high=100), T(4, 5, dtype=torch.int8, high=100))),
    Case("aten::mm", (T(3, 4, dtype=torch.uint8), T(4, 5, dtype=torch.uint8))),
    Case("aten::mm", (T(3, 0), T(0, 5)), dynamic=False),
    Case("aten::mm", (T(0, 3), T(3, 5)), dynamic=False),
    Case("aten::bmm", (T(2, 3, 4), T(2, 4, 5))),
    Case("aten::bmm", (T(0, 3, 4), T(0, 4, 5)), dynamic=False),
    Case("aten::_int_mm", (T(32, 16, dtype=torch.int8), T(16, 8, dtype=torch.int8))),
    Case("aten::mv", (T(3, 4), T(4))),
    Case("aten::mv", (T(3, 4, dtype=torch.int32), T(4, dtype=torch.int32))),
    Case("aten::dot", (T(5), T(5))),
    Case("aten::vdot", (T(5, dtype=INTS), T(5, dtype=INTS))),
    Case("aten::addmm", (T(5), T(3, 4), T(4, 5)), {"beta": 0.5, "alpha": 2}),
    Case("aten::addmm", (T(3, 1), T(3, 4), T(4, 5)), {"beta": -1}),
    Case("aten::addmm", (T(3, 5), T(3, 4), T(4, 5)), {"alpha": 0}),
    Case("aten::addmm", (T(3, 5) * NAN, T(3, 4), T(4, 5)), {"beta": 0}),
    Case("aten::addmm", (T(3, 5), T(3, 0), T(0, 5)), {"beta": 2}, dynamic=False),
    Case(
        "aten::addmm",
        (T(5, dtype=INTS), T(3, 4, dtype=INTS), T(4, 5, dtype=INTS)),
        {"beta": 3, "alpha": -2},
    ),
    Case("aten::baddbmm", (T(2, 3, 5), T(2, 3, 4), T(2, 4, 5)), {"beta": 0.5, "alpha": 2}),
    Case("aten::baddbmm", (T(2, 3, 5) * NAN, T(2, 3, 4), T(2, 4, 5)), {"beta": 0}),
    Case("aten::baddbmm", (T(5), T(2, 3, 4), T(2, 4, 5))),
    Case("aten::addbmm", (T(3, 5), T(2, 3, 4), T(2, 4, 5)), {"beta": 0.5, "alpha": 2}),
    Case(
        "aten::addbmm",
        (T(5, dtype=torch.int8), T(2, 3, 4, dtype=torch.int8), T(2, 4, 5, dtype=torch.int8)),
    ),
    Case(
        "aten::addbmm",
        (T(5, dtype=INTS), T(2, 3, 0, dtype=INTS), T(2, 0, 5, dtype=INTS)),
        dynamic=False,
    ),
    Case("aten::addmv", (T(3), T(3, 4), T(4)), {"beta": 0.5, "alpha": 2}),
    Case("aten::addmv", (T(3) * NAN, T(3, 4), T(4)), {"beta": 0}),
    Case("aten::addr", (T(3, 4), T(3), T(4)), {"beta": 0.5, "alpha": 2}),
    Case("aten::addr", (T(3, 4) * NAN, T(3), T(4)), {"beta": 0}),
    Case(
        "aten::addr", (T(3, 4, dtype=torch.bool), T(3, dtype=torch.bool), T(4, dtype=torch.bool))
    ),
    Case("aten::linear", (T(2, 3), T(4, 3), T(4)), pre_dispatch=True),
    Case("aten::linear", (T(2, 5, 3), T(4, 3), T(4)), pre_dispatch=True),
    Case("aten::linear", (T(3), T(4, 3)), pre_dispatch=True),
    Case("aten::linear", (T(2, 3), T(3)), pre_dispatch=True),
    Case("aten::linalg_cross", (T(2, 3), T(2, 3))),
    Case("aten::linalg_cross", (T(3, 4, dtype=INTS), T(3, 1, dtype=INTS)), {"dim": -2}),
    *(
        Case(
            "aten::_trilinear",
            (T(3, 2, dtype=t), T(4, 2, 5, dtype=t), T(3, 5, dtype=t), [1, 3], [0], [1, 2], [2, 3]),
        )
        for t in (torch.float32, INTS)
    ),
    *(  # the gradients of what has a batch, and of what has none
        Case("aten::_trilinear", (*factors, *expand, summed), dynamic=bool(b))
        for b in (2, 0)
        for x, w, y, g in [(T(b, 3), T(4, 3, 5), T(b, 5), T(b, 4))]
        for factors, expand, summed in (
            ((g, w, y), ([2, 3], [0], [1, 2]), [1, 3]),
            ((x, g, y), ([1, 3], [2, 3], [1, 2]), [0]),
            ((x, w, g), ([1, 3], [0], [2, 3]), [1, 2]),
        )
    ),
    Case("aten::trace", (T(3, 5),)),
    Case("aten::trace", (T(5, 3, dtype=torch.int32),)),
    Case("aten::trace", (T(0, 3),), dynamic=False),
]


test_op = table_test(CASES)
