from __future__ import annotations

import torch

from tests.export.cases import Case, T, table_test

CASES = [
    Case("aten::cat", ([T(2, 3), T(4, 3)],)),
    Case("aten::cat", ([T(2, 3), T(2, 3)], -1)),
    Case("aten::cat", ([T(0), T(2, 3), T(0, 3)],), dynamic=False),
    Case("aten::cat", ([T(0), T(0)],), dynamic=False),
    Case("aten::cat", ([T(2, dtype=torch.int8), T(3, dtype=torch.float16)],)),
    Case("aten::cat", ([T(2, dtype=torch.bool), T(3, dtype=torch.int64), T(1)],)),
    Case("aten::cat", ([T(2, 3)], 1)),
    Case("aten::stack", ([T(2, 3), T(2, 3)], -1)),
    Case("aten::stack", ([T(), T(dtype=torch.int64)],)),
    Case("aten::stack", ([T(2, 0), T(2, 0)], 1), dynamic=False),
]


test_op = table_test(CASES)
