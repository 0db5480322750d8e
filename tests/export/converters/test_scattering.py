from __future__ import annotations

import torch

from tests.export.cases import Case, T, table_test

I = torch.tensor  # noqa: E741
NAN = float("nan")
PLACES = I([[0, 2, 2], [1, 1, 2]])
NONE = torch.zeros(0, dtype=torch.int64)
ONE = torch.tensor([0])

REDUCTIONS = [
    Case(
        "aten::scatter_reduce.two",
        (T(3, 4, dtype=dtype), 0, PLACES, T(3, 5, dtype=dtype), reduce),
        {"include_self": include_self},
    )
    for reduce in ("sum", "prod", "mean", "amax", "amin")
    for include_self in (True, False)
    for dtype in (torch.float32, torch.int64, torch.float16)
]

CASES = [
    *REDUCTIONS,
    Case("aten::scatter_reduce.two", (T(), 0, I(0), T(), "amax"), {"include_self": False}),
    Case("aten::scatter_reduce.two", (T(3), 0, NONE, T(0), "mean"), dynamic=False),
    Case("aten::scatter_reduce.two", (T(3), 0, I([0, 1, 1, 2]), I([NAN, NAN, 5.0, 1.0]), "amax")),
    Case("aten::scatter_reduce.two", (I([1.0, NAN]), 0, I([0, 1, 1]), T(3), "amin")),
    Case("aten::scatter.src", (T(3, 4), -1, PLACES, T(2, 3))),
    Case("aten::scatter.src", (T(3, 4), 0, I([[0, 1, 2]]), T(5, 4))),
    Case("aten::scatter.src", (T(3, dtype=torch.bool), 0, I([2]), I([True]))),
    Case("aten::scatter.src", (T(), 0, I(0), T())),
    Case("aten::scatter.src", (T(3, 4), 0, NONE, T(3, 4)), dynamic=False),
    Case("aten::scatter.value", (T(3, 4), 1, PLACES, 2.5)),
    Case("aten::scatter.value", (T(3, dtype=torch.int8), 0, I(1), 3)),
    Case("aten::scatter.value", (T(), 0, I([0]), 3)),
    Case("aten::scatter.reduce", (T(3, 4), 1, PLACES, T(2, 3)), {"reduce": "add"}),
    Case("aten::scatter.reduce", (T(3, 4), 1, PLACES, T(2, 3)), {"reduce": "multiply"}),
    Case("aten::scatter.value_reduce", (T(3, 4), 1, PLACES, 3), {"reduce": "add"}),
    Case("aten::scatter.value_reduce", (T(3, 4), 1, PLACES, 2.5), {"reduce": "multiply"}),
    Case("aten::scatter_add", (T(3, 4), -1, PLACES, T(2, 3))),
    Case("aten::scatter_add", (T(3, dtype=torch.float16), 0, I([0, 0]), T(2).half())),
    Case("aten::scatter_add", (T(), 0, I([0]), T(1))),
    Case("aten::index_add", (T(3, 4), 0, I([2, 0, 2]), T(3, 4))),
    Case("aten::index_add", (T(3, 4), -1, I([3, 3]), T(3, 2)), {"alpha": 2.5}),
    Case("aten::index_add", (T(3, dtype=torch.int64), 0, I(1), I([4])), {"alpha": 2}),
    Case("aten::index_add", (T(3, dtype=torch.bool), 0, I([0, 1]), I([True, True]))),
    Case("aten::index_add", (T(), 0, ONE, T())),
    Case("aten::index_add", (T(3, 4), 0, NONE, T(0, 4)), dynamic=False),
    Case("aten::index_copy", (T(3, 4), 1, I([3, 0]), T(3, 2))),
    Case("aten::index_copy", (T(), 0, ONE, T())),
    Case("aten::index_reduce", (T(3, 4), 0, I([2, 0, 2]), T(3, 4), "prod")),
    Case(
        "aten::index_reduce",
        (T(3, 4), 1, I([2, 0, 2]), T(3, 3), "mean"),
        {"include_self": False},
    ),
    Case("aten::index_reduce", (T(3, 4), 1, I([2, 0, 2]), T(3, 3), "amax")),
    Case("aten::index_reduce", (T(), 0, ONE, T(), "amin"), {"include_self": False}),
    Case("aten::index_fill.int_Scalar", (T(3, 4), -1, I([0, -1]), 2.5)),
    Case("aten::index_fill.int_Scalar", (T(3, 4, dtype=torch.int64), 0, I(1), 7)),
    Case("aten::index_fill.int_Scalar", (T(), 0, ONE, 7)),
    Case("aten::index_fill.int_Scalar", (T(3), 0, NONE, 7), dynamic=False),
    Case("aten::index_fill.int_Tensor", (T(3, 4), 0, I([1, 1]), T())),
    Case("aten::put", (T(3, 4), I([[0, -1], [5, 6]]), T(2, 2))),
    Case("aten::put", (T(3, 4), I([0, 0, -12]), T(3), True)),
    Case("aten::put", (T(3, 4), NONE, T(0)), dynamic=False),
    Case(
        "aten::masked_scatter_backward",
        (T(2, 3), I([[True, False, True], [False, True, True]]), [5]),
    ),
    Case("aten::masked_scatter_backward", (T(2, 3), I([True, False, True]), [2, 3])),
]


test_op = table_test(CASES)
