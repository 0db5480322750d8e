from __future__ import annotations

import torch

from tests.export.cases import Case, T, table_test

CASES = [
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


test_op = table_test(CASES)
