from __future__ import annotations

import math

import torch

from tests.export.cases import Case, T, table_test


def probabilities(*shape: int, dim: int = -1) -> torch.Tensor:
    return torch.softmax(T(*shape), dim)


def masked() -> torch.Tensor:
    x = T(3, 4)
    x[1] = -math.inf
    x[2, 1:] = -math.inf
    return x


def beside_nan(*axes: int) -> torch.Tensor:
    """Rows of minus infinity, most with a NaN somewhere."""
    x = torch.full((4, 5), -math.inf)
    for i in range(1, 4):
        x[i, 2 * i - 2] = math.nan
    return x.permute(axes) if axes else x


HALF = torch.float16

CASES = [
    Case("aten::_softmax", (T(2, 3, 4), -1, False)),
    Case("aten::_softmax", (T(2, 3, 4), 1, False)),
    Case("aten::_softmax", (T(), 0, False)),
    Case("aten::_softmax", (T(0, 3), 1, False), dynamic=False),
    Case("aten::_softmax", (masked(), 1, False)),
    Case("aten::_softmax", (T(3, 4, dtype=torch.float64), 0, False)),
    Case("aten::_log_softmax", (T(2, 3, 4), -2, False)),
    Case("aten::_log_softmax", (T(), -1, False)),
    Case("aten::_log_softmax", (T(3, 4, dtype=torch.float64), 1, False)),
    Case("aten::_safe_softmax", (masked(), -1)),
    Case("aten::_safe_softmax", (masked(), 0, torch.float64)),
    Case("aten::_safe_softmax", (beside_nan(), -1)),
    Case("aten::_safe_softmax", (beside_nan(1, 0), 0)),
    Case("aten::_safe_softmax", (beside_nan(), 1, torch.float64)),
    Case("aten::_safe_softmax", (T(), 0)),
    Case("aten::_softmax_backward_data", (T(3, 4), probabilities(3, 4), -1, torch.float32)),
    Case("aten::_softmax_backward_data", (T(2, 3, 4), T(2, 3, 4), 1, torch.float32)),
    Case("aten::_softmax_backward_data", (T(), T(), 0, torch.float32)),
    Case("aten::_log_softmax_backward_data", (T(3, 4), T(3, 4), 0, torch.float32)),
    Case("aten::_log_softmax_backward_data", (T(2, 3, 4), T(2, 3, 4), -1, torch.float32)),
    Case("aten::_log_softmax_backward_data", (T(), T(), -1, torch.float32)),
]

TO_FLOAT = [
    Case(
        "aten::_softmax",
        (T(3, 4, dtype=HALF), 1, True),
        reference=lambda x, dim, _: torch.softmax(x.float(), dim),
    ),
    Case(
        "aten::_log_softmax",
        (T(3, 4, dtype=HALF), 0, True),
        reference=lambda x, dim, _: torch.log_softmax(x.float(), dim),
    ),
    Case(
        "aten::_softmax_backward_data",
        (T(3, 4), probabilities(3, 4), 1, HALF),
        reference=lambda g, y, dim, dtype: torch._softmax_backward_data(g, y, dim, g.dtype).half(),
    ),
]
"""Half inputs with float32 results: CUDA has these kernels, CPU has not."""


test_op = table_test([*CASES, *TO_FLOAT])
