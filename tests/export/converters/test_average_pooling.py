from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import torch

from tests.export.cases import Case, T, table_test

SIZES = {1: (11,), 2: (7, 10), 3: (5, 6, 7)}


def rows(
    rank: int,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor: int | None = None,
    *,
    x: torch.Tensor | None = None,
) -> Iterator[Case]:
    """Yield the rows of one configuration and of its gradient."""
    x = T(2, 3, *SIZES[rank]) if x is None else x
    lists = [[v] * rank if isinstance(v, int) else list(v) for v in (kernel, stride, padding)]
    args = (x, *lists, ceil_mode, count_include_pad, divisor)
    if rank == 1:
        yield Case("aten::avg_pool1d", args[:-1], pre_dispatch=True)
        return
    yield Case(f"aten::avg_pool{rank}d", args)
    if x.dtype.is_floating_point:
        value = getattr(torch.ops.aten, f"avg_pool{rank}d")(*args)
        gradient = T(*value.shape, dtype=value.dtype)
        yield Case(f"aten::avg_pool{rank}d_backward", (gradient, *args))


def with_special(value: float) -> torch.Tensor:
    x = T(1, 2, 7, 10)
    x[0, 0, 3, 3] = value
    return x


CASES = [
    *(
        case
        for stride, padding, ceil_mode, include in itertools.product(
            (2, 3), (0, 1), (False, True), (False, True)
        )
        for case in rows(2, 3, stride, padding, ceil_mode, include)
    ),
    *rows(2, 2),
    *rows(2, 3, 2, 1, True, False, x=T(0, 3, 8, 9)),
    *rows(2, 2, x=T(0, 3, 8, 9)),
    *rows(2, 2, 2, 0, True),
    *rows(2, 2, 2, 1, True, False),
    *rows(2, [3, 2], [1, 2], [1, 0], False, False),
    *rows(2, 3, 2, 1, True, True, 5),
    *rows(2, 2, 2, x=T(3, 7, 10)),  # no batch
    *rows(2, 3, 2, 1, True, False, x=T(3, 7, 10)),
    *rows(2, 3, 2, 1, True, False, x=T(2, 3, 6, 5, dtype=torch.float64)),
    *rows(2, 2, x=T(2, 3, 6, 5, dtype=torch.float64)),
    *rows(2, 2, 2, 0, True, x=T(2, 3, 2, 1, dtype=torch.float64)),
    *rows(2, 3, 2, 1, True, False, x=T(2, 3, 1, 4, dtype=torch.float64)),
    *rows(2, 2, 3, x=T(2, 3, 3, 5, dtype=torch.float64)),
    *rows(3, 2, 3, 1, True, x=T(1, 2, 2, 3, 2, dtype=torch.float64)),
    *rows(2, 3, 2, 1, True, False, x=T(2, 3, 6, 5, dtype=torch.float16)),
    *rows(2, 3, 2, 1, True, False, x=T(2, 3, 6, 5, dtype=torch.int64, low=-50, high=50)),
    *rows(2, 2, x=with_special(math.nan)),
    *rows(2, 3, 2, 1, x=with_special(math.inf)),
    *rows(1, 3, 2, 1),
    *rows(1, 3, 2, 1, True, False),
    *rows(3, 2),
    *rows(3, 2, 3, 1, True, False),
    *rows(3, [2, 3, 2], [1, 2, 3], [1, 0, 1]),
]


test_op = table_test(CASES)
