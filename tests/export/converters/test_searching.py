from __future__ import annotations

import math

import torch

from tests.export.cases import Case, T, table_test

EDGES = torch.tensor([-1.0, 0.0, 3.0])
ODD = torch.tensor([[1.0, math.nan, 2.0, math.inf, -1.0], [3.0, 0.0, -math.inf, 4.0, 0.0]])

CASES = [
    *(
        Case("aten::searchsorted.Tensor", (edges, values), {"right": right})
        for edges, values in (
            (torch.tensor([1.0, 3.0, 3.0, 5.0]), torch.tensor([[0.0, 3.0], [5.0, 9.0]])),
            (torch.tensor([[1, 3, 5], [2, 4, 6]]), torch.tensor([[3, 0], [6, 7]])),
            (torch.arange(33) // 3, torch.arange(-1, 12)),
            (EDGES, ODD),
        )
        for right in (False, True)
    ),
    # The steps of a binary search decide around a NaN, which sorting puts last.
    *(
        Case("aten::searchsorted.Tensor", (torch.tensor(edges), ODD), {"right": right})
        for edges in (
            [1.0, math.nan],
            [-1.0, 0.0, 1.0, math.nan],
            [0.0, math.nan, math.nan, math.nan, math.nan],
            [math.nan, 1.0, 2.0, 3.0],
            [3.0, 1.0, 2.0, -1.0, 0.0],
        )
        for right in (False, True)
    ),
    Case("aten::searchsorted.Tensor", (EDGES, torch.tensor(3.0)), {"side": "right"}),
    Case("aten::searchsorted.Tensor", (EDGES, T(0))),
    Case("aten::searchsorted.Tensor", (T(0), EDGES)),
    Case("aten::searchsorted.Tensor", (EDGES.flip(0), ODD), {"sorter": torch.tensor([2, 1, 0])}),
    Case("aten::searchsorted.Tensor", (EDGES, T(2)), {"out_int32": True}),
    Case("aten::histc", (torch.linspace(-11, 11, 89), 20, -10, 10)),
    Case("aten::histc", (ODD, 4, -0.5, 3.25)),
    # The symbolic trace of bucketize is decomposed by torch itself.
    Case("aten::bucketize.Tensor", (T(2, 3), EDGES), dynamic=False),
    Case("aten::bucketize.Tensor", (EDGES, EDGES), {"right": True}, dynamic=False),
]

test_op = table_test(CASES)
