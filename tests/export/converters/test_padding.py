from __future__ import annotations

import pytest
import torch

from tests.export.cases import Case, T, check

CASES = [
    Case("aten::constant_pad_nd", (T(2, 3), [1, 2])),
    Case("aten::constant_pad_nd", (T(2, 3), [0, 1, 2, 0], 1.5)),
    Case("aten::constant_pad_nd", (T(2, 5), [-1, -2])),
    Case("aten::constant_pad_nd", (T(2, 5), [-1, 2, 1, 0], float("-inf"))),
    Case("aten::constant_pad_nd", (T(2, 3, dtype=torch.int64), [1, 1], 7)),
    Case("aten::constant_pad_nd", (T(2, 3, dtype=torch.bool), [1, 1], True)),
    Case("aten::constant_pad_nd", (T(2, 3), [])),
]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_op(case: Case, dynamic: bool) -> None:
    check(case, dynamic=dynamic)
