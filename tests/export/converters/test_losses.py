from __future__ import annotations

import torch

from tests.export.cases import Case, T, table_test

X = T(3, 4).sigmoid()
TARGET = T(3, 4).sigmoid()
EDGES = torch.tensor([0.0, 1.0, 0.0, 1.0, 1e-8, 1 - 6e-8])
TARGETS = torch.tensor([0.0, 1.0, 1.0, 0.0, 0.5, 0.25])

PLACES = torch.tensor([[[0, 2, 1]], [[1, 1, -100]]])

CASES = [
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

test_losses = table_test(CASES)
