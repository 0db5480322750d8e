from __future__ import annotations

import math

import pytest
import torch

from tests.export.cases import Case, check, table_test

RUNS = torch.tensor([1, 1, 2, 2, 2, 3, 1, 1])
DTYPES = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.float32)

CASES = [
    *(Case("aten::unique_consecutive", (RUNS.to(dtype),), dynamic=False) for dtype in DTYPES),
    Case("aten::unique_consecutive", (RUNS, True, True), dynamic=False),
    Case("aten::unique_consecutive", (RUNS, False, True), dynamic=False),
    Case("aten::unique_consecutive", (RUNS, True, False), dynamic=False),
    Case("aten::unique_consecutive", (RUNS.reshape(2, 4), True, True), dynamic=False),
    Case("aten::unique_consecutive", (RUNS[:1], True, True), dynamic=False),
]
FULL = [
    *(Case("aten::unique_consecutive", (RUNS.to(dtype), True, True)) for dtype in DTYPES),
    Case("aten::unique_consecutive", (RUNS == 2, True, True)),
    Case("aten::unique_consecutive", (torch.tensor([math.nan, math.nan, 0.0]), True, True)),
]


NAN = math.nan
DOUBLED = torch.tensor([3.0, NAN, -1.0, 3.0, math.inf, NAN, -1.0, math.inf, -math.inf])
FULL += [
    *(Case("aten::_unique2", (RUNS.to(dtype), True, True, True)) for dtype in DTYPES),
    *(Case("aten::_unique2", (x, True, True, True)) for x in (DOUBLED, DOUBLED.double())),
    Case("aten::_unique2", (RUNS.reshape(2, 4).flip(1), True, True, True)),
    Case("aten::_unique2", (RUNS == 2, True, True, True)),
    Case("aten::_unique2", (RUNS[:0], True, True, True)),
    Case("aten::unique_dim", (RUNS.reshape(4, 2).flip(0), 0, True, True, True)),
    Case("aten::unique_dim", (RUNS.reshape(2, 4).float(), 1, True, True, True)),
    Case("aten::unique_dim", (torch.tensor([[2.0, 0.5], [2.0, -1], [2.0, 0.5]]), 0, True, True)),
]


ROWS = torch.tensor([[1, 1], [1, 1], [0, 2], [1, 1], [1, 2], [1, 2]])
NAN_ROWS = torch.tensor([[NAN, 1.0], [NAN, 1.0], [2.0, 1.0], [2.0, 1.0], [-0.0, 0.0], [0.0, 0.0]])
FULL += [
    *(Case("aten::unique_consecutive", (ROWS.to(d), True, True, 0)) for d in DTYPES),
    Case("aten::unique_consecutive", (ROWS == 1, True, True, 0)),
    Case("aten::unique_consecutive", (NAN_ROWS, True, True, 0)),
    Case("aten::unique_consecutive", (ROWS.mT.contiguous(), True, True, -1)),
    Case("aten::unique_consecutive", (ROWS.view(3, 2, 2), True, True, 1)),
    Case("aten::unique_consecutive", (ROWS, False, False, 0)),
    Case("aten::unique_consecutive", (ROWS[:1], True, True, 0)),
    Case("aten::unique_consecutive", (ROWS[:0], True, True, 0)),
    Case("aten::unique_consecutive", (RUNS, True, True, 0)),
]


@pytest.mark.parametrize("case", FULL, ids=str)
def test_indices_of_elements_of_any_type(case: Case) -> None:
    check(case)


OTHERS = {"aten::_unique2", "aten::unique_dim"}
ELEMENTS = [
    *(Case("aten::_unique2", (RUNS.flip(0).to(dtype),)) for dtype in DTYPES),
    Case("aten::_unique2", (DOUBLED,)),
    Case("aten::unique_dim", (RUNS.reshape(2, 4).float(), 1)),
    # NOTE: with a NaN torch's order of slices is none.
    Case("aten::unique_dim", (DOUBLED.nan_to_num(2.0).reshape(3, 3), 0)),
]


@pytest.mark.parametrize("case", ELEMENTS, ids=str)
def test_elements_alone(case: Case) -> None:
    check(case)


test_op = table_test(CASES)
