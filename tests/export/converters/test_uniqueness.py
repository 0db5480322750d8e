from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from dort_rewriter import UnsupportedOpError
from tests.export.cases import Case, check, table_test

RUNS = torch.tensor([1, 1, 2, 2, 2, 3, 1, 1])
DTYPES = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.float32)

IS_DECLARED = torch.torch_version.TorchVersion(torch.__version__) >= (2, 9)
"""Whether torch says that indices are int64, and not of the type of the elements."""

CASES = [
    *(
        Case(
            "aten::unique_consecutive",
            (RUNS.to(dtype),),
            dynamic=False,
            outputs=None if IS_DECLARED else (0,),
            reason="the empty results have the type that torch declares",
        )
        for dtype in DTYPES
    ),
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


@pytest.mark.parametrize("case", FULL, ids=str)
def test_indices_of_elements_of_any_type(case: Case) -> None:
    if IS_DECLARED or case.args[0].dtype is torch.int64:
        check(case)
    elif case.args[0].dtype is not torch.int32:
        with pytest.raises(UnsupportedOpError, match="declares its indices as"):
            check(case)


OTHERS = {"aten::_unique2", "aten::unique_dim"}
ELEMENTS = [
    *(Case("aten::_unique2", (RUNS.flip(0).to(dtype),), outputs=(0,)) for dtype in DTYPES),
    Case("aten::_unique2", (DOUBLED,), outputs=(0,)),
    Case("aten::unique_dim", (RUNS.reshape(2, 4).float(), 1), outputs=(0,)),
    # NOTE: with a NaN torch's order of slices is none.
    Case("aten::unique_dim", (DOUBLED.nan_to_num(2.0).reshape(3, 3), 0), outputs=(0,)),
]


@pytest.mark.parametrize("case", ELEMENTS, ids=str)
def test_elements_alone(case: Case) -> None:
    check(dataclasses.replace(case, reason="the empty results have the type that torch declares"))


test_op = table_test(CASES)
