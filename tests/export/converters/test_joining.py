from __future__ import annotations

import pytest
import torch

from tests.export.cases import Case, T, check

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


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_op(case: Case, dynamic: bool) -> None:
    if dynamic and not case.dynamic:
        return
    check(case, dynamic=dynamic)
