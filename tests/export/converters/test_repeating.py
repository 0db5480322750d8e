from __future__ import annotations

import torch

from tests.export.cases import Case, T, table_test

INT8, BOOL = torch.int8, torch.bool

CASES = [
    Case("aten::repeat", (T(2, 3), [2, 1, 3])),
    Case("aten::repeat", (T(2, 3, dtype=BOOL), [1, 1])),
    Case("aten::repeat", (T(2, 1), [1, 4])),
    Case("aten::repeat", (T(), [2, 3])),
    Case("aten::repeat", (T(2, 3), [0, 1]), dynamic=False),
    Case("aten::flip", (T(2, 3, 4, dtype=INT8), [-1, 0])),
    Case("aten::flip", (T(2, 3), [])),
    Case("aten::flip", (T(), [])),
    Case("aten::flip", (T(0, 3), [0]), dynamic=False),
    Case("aten::roll", (T(4, 5), [1, -7], [0, -1])),
    Case("aten::roll", (T(4, 5, dtype=BOOL), [3])),
    Case("aten::roll", (T(4, 5), [8], [0])),
    Case("aten::roll", (T(), [8])),
    Case("aten::roll", (T(0, 5), [1], [0]), dynamic=False),
    Case("aten::repeat_interleave.Tensor", (torch.tensor([1, 0, 3]),), static=False),
    Case("aten::repeat_interleave.Tensor", (torch.tensor([0, 0]).int(),), static=False),
    Case(
        "aten::repeat_interleave.Tensor",
        (torch.tensor([1, 0, 3]),),
        {"output_size": 4},
        dynamic=False,
    ),
]


test_op = table_test(CASES)
