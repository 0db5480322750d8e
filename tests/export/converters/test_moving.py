"""Elements moved: joined, split, gathered, repeated, on diagonals."""

from __future__ import annotations

import torch

from tests.export.cases import Case, T, table_test

JOINING = [
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


SPLITTING = [
    Case("aten::split_with_sizes", (T(6, 2), [1, 2, 3])),
    Case("aten::split_with_sizes", (T(2, 6, dtype=torch.bool), [0, 6, 0], -1), dynamic=False),
    Case("aten::split_with_sizes", (T(2, 6), [6], 1)),
    Case("aten::split_with_sizes_copy", (T(6, 2), [2, 4])),
    Case("aten::unsafe_split_with_sizes", (T(6, 2), [2, 4])),
    Case("aten::split.Tensor", (T(7, 2), 3)),
    Case("aten::split.Tensor", (T(2, 6), 2, -1)),
    Case("aten::split.Tensor", (T(2, 6), 10, -1)),
    Case("aten::split.Tensor", (T(0, 6), 2, 1), dynamic=False),
    Case("aten::split_copy.Tensor", (T(7, 2), 3)),
    Case("aten::unsafe_split.Tensor", (T(7, 2), 3)),
    Case("aten::unbind.int", (T(3, 2),)),
    Case("aten::unbind.int", (T(3, 1, dtype=torch.int8), -1)),
    Case("aten::unbind_copy.int", (T(3, 2), 1)),
]


I = torch.tensor  # noqa: E741

GATHERING = [
    Case("aten::gather", (T(3, 4), -1, I([[0, 3], [1, 1]]))),
    Case("aten::gather", (T(3, 4, dtype=torch.bool), 0, I([[2, 0], [1, 1], [0, 0], [1, 2]]))),
    Case("aten::gather", (T(), 0, I(0)), {"sparse_grad": True}),
    Case("aten::gather", (T(), 0, I([0, 0, 0]))),
    Case("aten::gather", (T(3), 0, I(2))),
    Case("aten::gather", (T(3, 4), 1, torch.zeros(0, 4, dtype=torch.int64)), dynamic=False),
    Case("aten::gather", (T(3, 4), 1, torch.zeros(0, dtype=torch.int64)), dynamic=False),
    Case("aten::index_select", (T(3, 4), -1, I([3, 0, 3]))),
    Case("aten::index_select", (T(3, 4), 0, I(2, dtype=torch.int32))),
    Case("aten::index_select", (T(), 0, I([0]))),
    Case("aten::index_select", (T(3, 4), 1, torch.zeros(0, dtype=torch.int64)), dynamic=False),
    Case("aten::take", (T(3, 4), I([[0, -1], [5, 11]]))),
    Case("aten::take", (T(3, 4, dtype=torch.int8), I(-2))),
    Case("aten::take", (T(), I([0, 0]))),
    Case("aten::nonzero", (I([[0, 2, 0], [3, 0, 4]]),), static=False),
    Case("aten::nonzero_static", (I([[0, 2, 0], [3, 0, 4]]),), {"size": 2}),
    Case("aten::nonzero_static", (I([0.0, 2.0]),), {"size": 3, "fill_value": 7}),
    Case("aten::nonzero_static", (I(True),), {"size": 0}, dynamic=False),
]


INT8, BOOL = torch.int8, torch.bool

REPEATING = [
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


DIAGONALS = [
    Case("aten::diagonal", (T(3, 4),)),
    Case("aten::diagonal", (T(6, 3),)),
    Case("aten::diagonal", (T(2, 5, 3, dtype=torch.int64), 1, -1, 0)),
    Case("aten::diagonal", (T(5, 3, 2), -2, 0, 1)),
    Case("aten::diagonal", (T(3, 4, dtype=torch.bool), 9), dynamic=False),
    Case("aten::diagonal", (T(0, 4),), dynamic=False),
    Case("aten::diagonal_copy", (T(3, 4), 1)),
    Case("aten::diag_embed", (T(2, 3),)),
    Case("aten::diag_embed", (T(2, 3), 2, 0, -1)),
    Case("aten::diag_embed", (T(3, dtype=torch.int64), -1, 1, 0)),
    Case("aten::diagonal_scatter", (T(3, 4), T(3))),
    Case("aten::diagonal_scatter", (T(3, 4) > 0, T(3, dtype=torch.int64))),
    Case("aten::diagonal_scatter", (T(2, 3, 4), T(2, 2), -1, 1, 2)),
    Case("aten::diagonal_scatter", (T(4, 2, 3), T(2, 3), 1, -1, 0)),
    Case("aten::diagonal_scatter", (T(3, 4), T(0), 9), dynamic=False),
]

CASES = [*JOINING, *SPLITTING, *GATHERING, *REPEATING, *DIAGONALS]

test_op = table_test(CASES)
