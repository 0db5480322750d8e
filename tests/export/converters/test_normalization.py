from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tests.export.cases import Case, T, table_test

DOUBLE = torch.float64
HALF = torch.float16
ALL = [True, True, True]
ONLY_INPUT = [True, False, False]


def layer_backward(
    x: torch.Tensor, inner: int, mask: Sequence[bool], *, affine: bool = True
) -> tuple[Any, ...]:
    shape = list(x.shape[x.dim() - inner :])
    weight, bias = (T(*shape).to(x.dtype) + 1, T(*shape).to(x.dtype)) if affine else (None, None)
    _, mean, rstd = torch.native_layer_norm(x, shape, weight, bias, 1e-5)
    return T(*x.shape).to(x.dtype) * 2 + 1, x, shape, mean, rstd, weight, bias, list(mask)


def group_backward(
    x: torch.Tensor, group: int, mask: Sequence[bool], *, affine: bool = True
) -> tuple[Any, ...]:
    n, c = x.shape[:2]
    weight = T(c).to(x.dtype) + 1 if affine else None
    sizes = n, c, x[0, 0].numel(), group
    _, mean, rstd = torch.native_group_norm(x, weight, None, *sizes, 1e-5)
    return T(*x.shape).to(x.dtype) * 2 + 1, x, mean, rstd, weight, *sizes, list(mask)


FAR = T(4, 64) + 1000
"""A mean large beside the deviation: a variance as E[x^2] - E[x]^2 would be wrong here."""

CASES = [
    Case("aten::native_layer_norm", (T(2, 3, 4), [4], T(4), T(4), 1e-5)),
    Case("aten::native_layer_norm", (T(2, 3, 4), [3, 4], T(3, 4), None, 1e-2)),
    Case("aten::native_layer_norm", (T(2, 3, 4), [2, 3, 4], None, None, 1e-5)),
    Case("aten::native_layer_norm", (T(2, 3, 4), [4], None, T(4), 1e-5)),
    Case("aten::native_layer_norm", (T(2, 3, dtype=DOUBLE), [3], *[T(3, dtype=DOUBLE)] * 2, 1e-5)),
    Case("aten::native_layer_norm", (T(2, 3, dtype=DOUBLE), [3], None, None, 1e-5)),
    Case("aten::native_layer_norm", (T(2, 3, dtype=HALF), [3], *[T(3, dtype=HALF)] * 2, 1e-5)),
    Case(
        "aten::native_layer_norm",
        (T(2, 3, dtype=HALF), [3], T(3), T(3), 1e-5),
        outputs=(0,),
        reason="traced, torch says half for the statistics; run, it gives float32",
    ),
    Case(
        "aten::native_layer_norm",
        (FAR, [64], T(64), T(64), 1e-5),
        atol=5e-3,
        reason="numbers around 1000 are 6e-5 apart",
    ),
    Case("aten::native_layer_norm_backward", layer_backward(T(2, 3, 4), 1, ALL)),
    Case("aten::native_layer_norm_backward", layer_backward(T(2, 3, 4), 2, ALL)),
    Case("aten::native_layer_norm_backward", layer_backward(T(2, 3, 4), 3, ALL)),
    Case("aten::native_layer_norm_backward", layer_backward(T(5, 4), 1, ONLY_INPUT, affine=False)),
    Case("aten::native_layer_norm_backward", layer_backward(T(5, 4), 1, ONLY_INPUT)),
    Case("aten::native_layer_norm_backward", layer_backward(T(5, 4), 1, [False, True, True])),
    Case("aten::native_layer_norm_backward", layer_backward(T(5, 4, dtype=DOUBLE), 1, ALL)),
    Case(
        "aten::native_layer_norm_backward",
        layer_backward(T(5, 4, dtype=HALF), 1, ALL),
        atol=1e-2,
        reason="torch keeps the statistics of half inputs in half",
    ),
    Case("aten::native_group_norm", (T(2, 6, 3, 4), T(6), T(6), 2, 6, 12, 3, 1e-5)),
    Case("aten::native_group_norm", (T(2, 6, 5), None, None, 2, 6, 5, 1, 1e-2)),
    Case("aten::native_group_norm", (T(2, 6), T(6), None, 2, 6, 1, 2, 1e-5)),
    Case("aten::native_group_norm", (T(2, 4, 3, dtype=DOUBLE), None, None, 2, 4, 3, 2, 1e-5)),
    Case("aten::native_group_norm", (T(2, 4, 3, dtype=HALF), None, None, 2, 4, 3, 2, 1e-5)),
    Case("aten::native_group_norm_backward", group_backward(T(2, 6, 3, 4), 3, ALL)),
    Case(
        "aten::native_group_norm_backward", group_backward(T(2, 6, 5), 1, ONLY_INPUT, affine=False)
    ),
    Case("aten::native_group_norm_backward", group_backward(T(2, 6, 5), 2, ONLY_INPUT)),
    Case("aten::native_group_norm_backward", group_backward(T(2, 6, 5), 2, [False, True, True])),
    Case("aten::native_group_norm_backward", group_backward(T(2, 4, 3, dtype=DOUBLE), 2, ALL)),
]


test_op = table_test(CASES)
