from __future__ import annotations

import torch

from tests.export.cases import Case, T, table_test

CASES = [
    Case("aten::diagonal", (T(3, 4),)),
    Case("aten::diagonal", (T(6, 3),)),
    Case("aten::diagonal", (T(2, 5, 3, dtype=torch.int64), 1, -1, 0)),
    Case("aten::diagonal", (T(5, 3, 2), -2, 0, 1)),
    Case("aten::diagonal", (T(3, 4, dtype=torch.bool), 9), dynamic=False),
    Case("aten::diagonal", (T(0, 4),), dynamic=False),
    Case("aten::diagonal_copy", (T(3, 4), 1)),
    Case("aten::diag_embed", (T(2, 3),)),
    Case("aten::diag_embed", (T(2, 3), 2, 0, -1)),
    Case("aten::diag_embed", (T(3, dtype=torch.int64), -1, 1, 0)),
    Case("aten::diagonal_scatter", (T(3, 4), T(3))),
    Case("aten::diagonal_scatter", (T(3, 4) > 0, T(3, dtype=torch.int64))),
    Case("aten::diagonal_scatter", (T(2, 3, 4), T(2, 2), -1, 1, 2)),
    Case("aten::diagonal_scatter", (T(4, 2, 3), T(2, 3), 1, -1, 0)),
    Case("aten::diagonal_scatter", (T(3, 4), T(0), 9), dynamic=False),
]


test_op = table_test(CASES)
