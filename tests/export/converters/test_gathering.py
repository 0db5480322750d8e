from __future__ import annotations

import torch

from tests.export.cases import Case, T, table_test

I = torch.tensor  # noqa: E741

CASES = [
    Case("aten::gather", (T(3, 4), -1, I([[0, 3], [1, 1]]))),
    Case("aten::gather", (T(3, 4, dtype=torch.bool), 0, I([[2, 0], [1, 1], [0, 0], [1, 2]]))),
    Case("aten::gather", (T(), 0, I(0)), {"sparse_grad": True}),
    Case("aten::gather", (T(), 0, I([0, 0, 0]))),
    Case("aten::gather", (T(3), 0, I(2))),
    Case("aten::gather", (T(3, 4), 1, torch.zeros(0, 4, dtype=torch.int64)), dynamic=False),
    Case("aten::gather", (T(3, 4), 1, torch.zeros(0, dtype=torch.int64)), dynamic=False),
    Case("aten::index_select", (T(3, 4), -1, I([3, 0, 3]))),
    Case("aten::index_select", (T(3, 4), 0, I(2, dtype=torch.int32))),
    Case("aten::index_select", (T(), 0, I([0]))),
    Case("aten::index_select", (T(3, 4), 1, torch.zeros(0, dtype=torch.int64)), dynamic=False),
    Case("aten::take", (T(3, 4), I([[0, -1], [5, 11]]))),
    Case("aten::take", (T(3, 4, dtype=torch.int8), I(-2))),
    Case("aten::take", (T(), I([0, 0]))),
    Case("aten::nonzero", (I([[0, 2, 0], [3, 0, 4]]),), static=False),
    Case("aten::nonzero_static", (I([[0, 2, 0], [3, 0, 4]]),), {"size": 2}),
    Case("aten::nonzero_static", (I([0.0, 2.0]),), {"size": 3, "fill_value": 7}),
    Case("aten::nonzero_static", (I(True),), {"size": 0}, dynamic=False),
]


test_op = table_test(CASES)
