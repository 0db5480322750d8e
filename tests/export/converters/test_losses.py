from __future__ import annotations

import torch

from tests.export.cases import Case, T, table_test

X = T(3, 4).sigmoid()
TARGET = T(3, 4).sigmoid()
EDGES = torch.tensor([0.0, 1.0, 0.0, 1.0, 1e-8, 1 - 6e-8])
TARGETS = torch.tensor([0.0, 1.0, 1.0, 0.0, 0.5, 0.25])

CASES = [
    *(
        Case("aten::binary_cross_entropy", (X.to(t), TARGET.to(t), weight, reduction))
        for t in (torch.float32, torch.float64, torch.float16)
        for weight, reduction in ((None, 0), (T(4).abs().to(t), 1), (T(3, 1).abs().to(t), 2))
    ),
    Case("aten::binary_cross_entropy", (EDGES, TARGETS, None, 0)),
    Case("aten::binary_cross_entropy", (EDGES, TARGETS)),
]

test_losses = table_test(CASES)
