from __future__ import annotations

import torch

from tests.export.cases import Case, T, table_test

X = T(2, 3)
ANY = "uninitialized: torch gives whatever the memory holds"

CASES = [
    Case("aten::full", ([2, 3], 1.5)),
    Case("aten::full", ([], 2)),
    Case("aten::full", ([0, 2], True)),
    Case("aten::full", ([2], 2), {"dtype": torch.float64}),
    Case("aten::full_like", (X, 2)),
    Case("aten::full_like", (X, -1.5), {"dtype": torch.int32}),
    Case("aten::new_full", (X, [3], 7)),
    Case("aten::zeros", ([2, 3],), {"dtype": torch.int64}),
    Case("aten::_efficientzerotensor", ([2, 3],), {"dtype": torch.float64}),
    Case("aten::ones", ([2],), {"dtype": torch.bool}),
    Case("aten::zeros_like", (T(0, 2),)),
    Case("aten::ones_like", (T(),), {"dtype": torch.int64}),
    Case("aten::zero", (X,)),
    Case("aten::new_zeros", (X, [2, 2]), {"dtype": torch.int64}),
    Case("aten::new_ones", (X, [2, 2])),
    Case("aten::fill.Scalar", (X, 2)),
    Case("aten::fill.Tensor", (X, torch.tensor(3))),
    Case("aten::empty.memory_format", ([2, 3],), outputs=(), reason=ANY),
    Case("aten::empty_like", (X,), outputs=(), reason=ANY),
    Case("aten::new_empty", (X, [2, 2]), outputs=(), reason=ANY),
    Case("aten::empty_strided", ([2, 3], [1, 2]), outputs=(), reason=ANY),
    Case("aten::new_empty_strided", (X, [2, 3], [1, 2]), outputs=(), reason=ANY),
    Case("aten::empty_permuted", ([2, 3], [1, 0]), outputs=(), reason=ANY),
    Case("aten::scalar_tensor", (2.5,), {"dtype": torch.float64}),
    Case("aten::scalar_tensor", (True,), {"dtype": torch.bool}),
    Case("aten::arange", (5,)),
    Case("aten::arange", (0,)),
    Case("aten::arange", (2.5,)),
    Case("aten::arange.start", (-1, 4), {"dtype": torch.float32}),
    Case("aten::arange.start_step", (5, -4, -3)),
    Case("aten::arange.start_step", (-5, 4, 3)),
    Case("aten::arange.start_step", (5, 5, -2)),
    Case("aten::arange.start_step", (0.1, 1.0, 0.1)),
    Case("aten::arange.start_step", (0.1, 1.0, 0.1), {"dtype": torch.float64}),
    Case("aten::eye", (3,)),
    Case("aten::eye.m", (2, 4), {"dtype": torch.int64}),
    *(
        Case(f"aten::{name}", (x, k))
        for name in ("tril", "triu")
        for x, k in ((T(3, 4), 0), (T(2, 3, 3), -1), (T(4, 3, dtype=torch.bool), 1))
    ),
    *(
        Case(f"aten::{name}_indices", (rows, columns, offset))
        for name in ("tril", "triu")
        for rows, columns, offset in ((3, 4, 0), (4, 3, -1), (3, 3, 2), (2, 2, -5))
    ),
]


test_op = table_test(CASES)
