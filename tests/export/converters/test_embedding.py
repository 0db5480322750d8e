from __future__ import annotations

import torch

from tests.export.cases import Case, T, table_test

INDICES = torch.tensor([[1, 0, 2], [2, 2, 5]])

CASES = [
    Case("aten::embedding", (T(6, 4), INDICES)),
    Case("aten::embedding", (T(6, 4), INDICES.to(torch.int32), 2, True)),
    Case("aten::embedding", (T(6, 4, dtype=torch.float64), torch.tensor(3))),
    Case("aten::embedding", (T(6, 4), torch.zeros(0, dtype=torch.int64)), dynamic=False),
    Case("aten::embedding_dense_backward", (T(2, 3, 4), INDICES, 6, -1, False)),
    Case("aten::embedding_dense_backward", (T(2, 3, 4), INDICES, 6, 2, False)),
    Case("aten::embedding_dense_backward", (T(2, 3, 4), INDICES, 6, -1, True)),
    Case("aten::embedding_dense_backward", (T(2, 3, 4), INDICES.int(), 7, 0, True)),
    Case("aten::embedding_dense_backward", (T(4), torch.tensor(3), 5, -1, False)),
    Case(
        "aten::embedding_dense_backward",
        (T(0, 4), torch.zeros(0, dtype=torch.int64), 5, -1, False),
        dynamic=False,
    ),
]


test_op = table_test(CASES)
