from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tests.export.cases import Case, T, table_test

ALL = [True, True, True]


def stats(c: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    return T(c, dtype=dtype), T(c, dtype=dtype).abs() + 0.5


def backward(
    x: torch.Tensor, mask: Sequence[bool], *, train: bool, affine: bool = True
) -> tuple[Any, ...]:
    c = x.shape[1]
    mean, var = stats(c, torch.float64 if x.dtype is torch.float64 else torch.float32)
    weight = mean + 2 if affine else None
    _, save_mean, save_rstd = torch.native_batch_norm(x, weight, None, None, None, True, 0.1, 1e-5)
    grad = T(*x.shape).to(x.dtype) * 2 + 1
    return grad, x, weight, mean, var, save_mean, save_rstd, train, 1e-5, list(mask)


FUNCTIONAL = "aten::_native_batch_norm_legit_functional"
BACKWARD = "aten::native_batch_norm_backward"
NEW_BACKWARD = "aten::batch_norm_backward"
RESERVE = torch.empty(0, dtype=torch.uint8)
X = T(2, 3, 4, 5)
PAIR = (T(3), T(3) + 1)
WIDE = (T(2, 3, 4, dtype=torch.float64), *stats(3, torch.float64), *stats(3, torch.float64))

CASES = [
    Case(FUNCTIONAL, (X, *PAIR, *stats(3), True, 0.1, 1e-5)),
    Case(FUNCTIONAL, (T(4, 3), None, None, *stats(3), True, 0.3, 1e-3)),
    Case(
        FUNCTIONAL,
        (X.half(), *PAIR, *stats(3), True, 0.1, 1e-5),
        outputs=(0, 3, 4),
        reason="traced, torch says half for the saved statistics; run, it gives float32",
    ),
    Case(FUNCTIONAL, (*WIDE, True, 0.1, 1e-5)),
    Case(FUNCTIONAL, (X, *PAIR, *stats(3), False, 0.1, 1e-5)),
    Case("aten::_native_batch_norm_legit.no_stats", (X, *PAIR, True, 0.1, 1e-5)),
    Case("aten::_native_batch_norm_legit.no_stats", (T(2, 3, 4), None, PAIR[0], True, 0.1, 1e-5)),
    Case("aten::_native_batch_norm_legit_no_training", (X, *PAIR, *stats(3), 0.1, 1e-5)),
    Case("aten::_native_batch_norm_legit_no_training", (T(4, 3), None, None, *stats(3), 0.1, 0.1)),
    Case("aten::_native_batch_norm_legit_no_training", (*WIDE, 0.1, 1e-5)),
    Case("aten::_batch_norm_with_update_functional", (X, *PAIR, *stats(3), 0.1, 1e-5)),
    Case("aten::_batch_norm_no_update", (X, *PAIR, *stats(3), 0.1, 1e-5)),
    Case(BACKWARD, backward(X, ALL, train=True)),
    Case(BACKWARD, backward(T(4, 3), ALL, train=True, affine=False)),
    Case(BACKWARD, backward(T(2, 3, 4, dtype=torch.float64), ALL, train=True)),
    Case(BACKWARD, backward(X, [True, False, False], train=True)),
    Case(BACKWARD, backward(X, [False, True, True], train=True)),
    Case(BACKWARD, backward(X, ALL, train=False)),
    Case(BACKWARD, backward(X, [True, False, True], train=False, affine=False)),
    Case(NEW_BACKWARD, (*backward(X, ALL, train=True), RESERVE)),
    Case(NEW_BACKWARD, (*backward(X, ALL, train=False), RESERVE)),
]


test_op = table_test(CASES)
