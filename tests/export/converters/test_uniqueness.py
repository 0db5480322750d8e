from __future__ import annotations

import math

import pytest
import torch

from tests.export.cases import Case, T, check

RUNS = torch.tensor([1, 1, 2, 2, 2, 3, 1, 1])
DTYPES = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.float32)

CASES = [
    *(
        Case("aten::unique_consecutive", (RUNS.to(dtype), True, True), dynamic=False, static=True)
        for dtype in DTYPES
    ),
    Case("aten::unique_consecutive", (RUNS == 2, True, True), dynamic=False),
    Case("aten::unique_consecutive", (RUNS.reshape(2, 4), True, True), dynamic=False),
    Case(
        "aten::unique_consecutive",
        (torch.tensor([math.nan, math.nan, 0.0]), True, True),
        dynamic=False,
    ),
    Case("aten::unique_consecutive", (T(1),), dynamic=False),
    Case("aten::unique_consecutive", (RUNS, False, True), dynamic=False),
    Case("aten::unique_consecutive", (RUNS, True, False), dynamic=False),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_op(case: Case) -> None:
    check(case)
