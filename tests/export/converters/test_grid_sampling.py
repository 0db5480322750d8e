from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch

from tests.export.cases import Case, T, table_test


def rows(
    x: torch.Tensor, grid: torch.Tensor, mode: int, padding: int, corners: bool
) -> Iterator[Case]:
    """Yield the rows of a sampling and of its gradients."""
    name = f"aten::grid_sampler_{x.dim() - 2}d"
    yield Case(name, (x, grid, mode, padding, corners))
    gradient = T(*x.shape[:2], *grid.shape[1:-1], dtype=x.dtype)
    args = (gradient, x, grid, mode, padding, corners, [True, True])
    yield Case(f"{name}_backward", args, atol=1e-4, reason="sums over channels and samples")


def grid(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Places within and without."""
    return T(*shape, dtype=dtype) * 1.3


CASES = [
    *(
        case
        for mode, padding, corners in itertools.product((0, 1, 2), (0, 1, 2), (False, True))
        for case in rows(T(2, 3, 5, 6), grid(2, 4, 3, 2), mode, padding, corners)
    ),
    *(
        case
        for mode, padding, corners in ((0, 0, False), (0, 1, True), (0, 2, False), (1, 2, True))
        for case in rows(T(2, 3, 3, 5, 4), grid(2, 2, 4, 3, 3), mode, padding, corners)
    ),
    *rows(T(2, 3, 5, 6, dtype=torch.float64), grid(2, 4, 3, 2, dtype=torch.float64), 0, 2, False),
    *rows(T(2, 3, 1, 6), grid(2, 4, 3, 2), 0, 2, True),
    Case("aten::grid_sampler_2d", (T(2, 3, 5, 6), grid(2, 4, 3, 2) * float("nan"), 0, 0, False)),
    Case("aten::grid_sampler_2d", (T(2, 3, 5, 6), grid(2, 4, 3, 2) * 1e20, 0, 0, False)),
]


test_op = table_test(CASES)
