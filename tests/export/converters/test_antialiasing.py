from __future__ import annotations

from typing import Any

import onnxruntime
import pytest
import torch
from torch.nn.functional import interpolate

from dort_rewriter import to_onnx
from tests.export.cases import Case, T, table_test

X = T(2, 3, 16, 21)
NAMES = ("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa")
SIZES = ([8, 7], [5, 30], [40, 21], [2, 2])

CASES = [
    *(
        Case(f"aten::{name}", (x, size, corners), dynamic=False)
        for name in NAMES
        for x in (X, X.double())
        for size in SIZES
        for corners in (False, True)
    ),
    *(Case(f"aten::{n}", (X, [8, 10], False, 0.53, 0.49), dynamic=False) for n in NAMES),
    *(
        Case(f"aten::{n}_backward", (T(2, 3, *s), s, [2, 3, 16, 21], c), dynamic=False)
        for n in NAMES
        for s in SIZES
        for c in (False, True)
    ),
]

test_op = table_test(CASES)


class _Resized(torch.nn.Module):
    def __init__(self, how: dict[str, Any]) -> None:
        super().__init__()
        self.how = how

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return interpolate(x, antialias=True, **self.how)


@pytest.mark.parametrize(
    "how",
    [
        {"size": (9, 10), "mode": "bilinear"},
        {"size": (9, 10), "mode": "bicubic", "align_corners": True},
        {"scale_factor": 0.45, "mode": "bilinear", "align_corners": True},
        {"scale_factor": (0.3, 1.7), "mode": "bicubic"},
        {"scale_factor": 0.3, "mode": "bilinear", "recompute_scale_factor": True},
    ],
    ids=str,
)
def test_files(how: dict[str, Any]) -> None:
    module = _Resized(how)
    session = onnxruntime.InferenceSession(to_onnx(module, (X,)).SerializeToString())
    (got,) = session.run(None, {session.get_inputs()[0].name: X.numpy()})
    torch.testing.assert_close(torch.from_numpy(got), module(X), atol=1e-5, rtol=1e-5)
