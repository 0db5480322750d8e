from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from tests.export.cases import Case, T, table_test


def rows(a: torch.Tensor, b: torch.Tensor, p: float) -> Iterator[Case]:
    """Yield the rows of distances, some of them zero, and of their gradient."""
    a[..., 0, :] = b[..., 1, :]
    a[..., 1, 0] = b[..., 0, 0]
    distances = torch.ops.aten._cdist_forward(a, b, p, None)
    yield Case("aten::_cdist_forward", (a, b, p, None))
    gradient = T(*distances.shape, dtype=a.dtype)
    yield Case("aten::_cdist_backward", (gradient, a, b, p, distances))


CASES = [
    *(
        case
        for p in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, math.inf)
        for case in rows(T(2, 4, 3), T(2, 5, 3), p)
    ),
    *rows(T(4, 3, dtype=torch.float64), T(6, 3, dtype=torch.float64), 2.0),
    *rows(T(4, 3, dtype=torch.float64), T(6, 3, dtype=torch.float64), 3.0),
    Case("aten::_cdist_forward", (T(30, 4), T(28, 4), 2.0, None)),
    *(
        Case("aten::_cdist_forward", (T(3, 0), T(4, 0), p, None), dynamic=False)
        for p in (0.0, 1.0, 2.0, 3.0)
    ),
]


test_op = table_test(CASES)
