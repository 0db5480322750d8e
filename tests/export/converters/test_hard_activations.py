from __future__ import annotations

import math

import torch

from tests.export.cases import Case, T, table_test

X = torch.tensor([[0.0, -0.3, 0.3, 1.5, -1.5, 3.0], [-7.0, 7.0, -3.0, math.nan, 0.5, -0.5]])
G = T(2, 6)

# Their symbolic trace is decomposed by torch itself.
STATIC = [
    Case("aten::softshrink", (X,), dynamic=False),
    Case("aten::softshrink", (X, 1.0), dynamic=False),
    Case("aten::hardshrink", (X,), dynamic=False),
    Case("aten::hardshrink", (X, 1.0), dynamic=False),
    Case("aten::softshrink_backward", (G, X, 0.5), dynamic=False),
    Case("aten::hardshrink_backward", (G, X, 0.5), dynamic=False),
]

CASES = [
    *STATIC,
    Case("aten::hardtanh", (X,)),
    Case("aten::hardtanh", (X, -0.5, 2)),
    Case("aten::hardtanh_backward", (G, X, -0.5, 1.5)),
    *(Case(f"aten::{n}", (X,)) for n in ("hardsigmoid", "hardswish")),
    Case("aten::hardsigmoid_backward", (G, X)),
    Case("aten::hardswish_backward", (G, X)),
    Case("aten::glu", (X, -1)),
    Case("aten::glu", (T(4, 3), 0)),
    Case("aten::glu_backward", (T(2, 3), T(2, 6), -1)),
    Case("aten::glu_backward", (T(2, 3), T(4, 3), 0)),
]


test_op = table_test(CASES)
