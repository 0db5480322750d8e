"""Losses and distances, and their gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from tests.export.cases import Case, T, table_test

X = T(3, 4).sigmoid()
TARGET = T(3, 4).sigmoid()
EDGES = torch.tensor([0.0, 1.0, 0.0, 1.0, 1e-8, 1 - 6e-8])
TARGETS = torch.tensor([0.0, 1.0, 1.0, 0.0, 0.5, 0.25])

PLACES = torch.tensor([[[0, 2, 1]], [[1, 1, -100]]])

LOSSES = [
    *(
        Case("aten::binary_cross_entropy", (X.to(t), TARGET.to(t), weight, reduction))
        for t in (torch.float32, torch.float64, torch.float16)
        for weight, reduction in ((None, 0), (T(4).abs().to(t), 1), (T(3, 1).abs().to(t), 2))
    ),
    Case("aten::binary_cross_entropy", (EDGES, TARGETS, None, 0)),
    Case("aten::binary_cross_entropy", (EDGES, TARGETS)),
    *(
        Case("aten::nll_loss_backward", (grad, x, target, weight, reduction, -100, T() + 5))
        for x, target in (
            (T(3, 4), torch.tensor([1, -100, 3])),
            (T(4), torch.tensor(2)),
        )
        for grad, weight, reduction in (
            (T(*target.shape), -T(4), 0),
            (T(), T(4), 1),
            (T(), None, 2),
        )
    ),
    *(
        Case(
            "aten::nll_loss2d_backward",
            (grad.to(t), T(2, 4, 1, 3).to(t), PLACES, weight, reduction, ignored, T().to(t) + 5),
        )
        for t in (torch.float32, torch.float64)
        for grad, weight, reduction, ignored in (
            (T(2, 1, 3), None, 0, -100),
            (T(), T(4).to(t), 1, -100),
            (T(), None, 2, -100),
        )
    ),
]


def rows(a: torch.Tensor, b: torch.Tensor, p: float) -> Iterator[Case]:
    """Yield the rows of distances, some of them zero, and of their gradient."""
    a[..., 0, :] = b[..., 1, :]
    a[..., 1, 0] = b[..., 0, 0]
    distances = torch.ops.aten._cdist_forward(a, b, p, None)
    yield Case("aten::_cdist_forward", (a, b, p, None))
    gradient = T(*distances.shape, dtype=a.dtype)
    yield Case("aten::_cdist_backward", (gradient, a, b, p, distances))


DISTANCES = [
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

CASES = [*LOSSES, *DISTANCES]

test_op = table_test(CASES)
