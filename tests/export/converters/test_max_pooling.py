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
    dilation: Any = 1,
    ceil_mode: bool = False,
    *,
    x: torch.Tensor | None = None,
) -> Iterator[Case]:
    """Yield the rows of one configuration: values alone, with indices, gradient."""
    x = T(2, 3, *SIZES[rank]) if x is None else x
    spread = (kernel, stride, padding, dilation)
    lists = [[v] * rank if isinstance(v, int) else list(v) for v in spread]
    args = (x, *lists, ceil_mode)
    name = f"aten::max_pool{rank}d_with_indices"
    yield Case(name, args, pre_dispatch=rank == 1)
    if rank > 1:
        value, index = getattr(torch.ops.aten, f"max_pool{rank}d_with_indices")(*args)
        gradient = T(*value.shape, dtype=value.dtype)
        yield Case(f"{name}_backward", (gradient, *args, index))


def special(value: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Numbers among which a value stands alone, beside others, and alone in windows."""
    x = T(2, 3, 8, 9, dtype=dtype)
    x[0, 0], x[0, 1, :4, :4], x[1, 0, 3, 3], x[1, 1, ::3, ::2] = (value,) * 4
    return x


def unpool(x: torch.Tensor, padding: int, size: list[int]) -> Case:
    """The row of putting the results of a pooling back."""
    rank = len(size)
    lists = [[2] * rank, [2] * rank, [padding] * rank]
    values, indices = getattr(torch.ops.aten, f"max_pool{rank}d_with_indices")(x, *lists)
    rest = (lists[1], lists[2]) if rank == 3 else ()
    return Case(f"aten::max_unpool{rank}d", (values, indices, size, *rest))


CASES = [
    unpool(T(2, 3, 6, 8), 0, [6, 8]),
    unpool(T(2, 3, 6, 7), 1, [6, 7]),
    unpool(T(3, 6, 8), 0, [6, 8]),
    unpool(T(2, 3, 6, 8, dtype=torch.float64), 0, [6, 8]),
    unpool(T(2, 3, 4, 6, 8), 0, [4, 6, 8]),
    *(
        case
        for stride, padding, dilation, ceil_mode in itertools.product(
            (2, 3), (0, 1), (1, 2), (False, True)
        )
        for case in rows(2, 3, stride, padding, dilation, ceil_mode)
    ),
    *rows(1, 3, 2, 1, 1, True),
    *rows(3, 2, 1),
    *rows(3, 3, 2, 1, 1, True),
    *rows(2, 2),
    *rows(2, 1),
    *rows(2, 1, 2),
    *rows(2, 3, 2, x=T(0, 3, 8, 9)),
    *rows(2, [3, 2], [2, 1], [1, 0], [1, 2]),
    *rows(2, 2, x=T(3, 7, 10)),  # no batch
    *rows(2, 2, x=T(2, 3, 4, 4, dtype=torch.float64)),
    *rows(2, 3, 2, 1, x=T(2, 3, 5, 6, dtype=torch.float16)),
    *rows(2, 2, x=torch.zeros(1, 2, 4, 6)),  # the first of equal elements
    *rows(2, 3, 1, 1, x=torch.zeros(1, 2, 4, 6)),
    *rows(2, 2, x=T(2, 3, 5, 6).relu()),
    Case("aten::max_pool2d_with_indices", (T(3, 5, 6, dtype=torch.int64), [3, 3], [2, 2], [1, 1])),
    Case("aten::max_pool1d_with_indices", (T(2, 3, 20), [20]), pre_dispatch=True),
    *rows(2, [17, 1], x=T(2, 3, 17, 5)),
    *rows(2, [17, 20], x=T(2, 3, 17, 20)),
    *(
        case
        for value in (-math.inf, math.nan, math.inf, torch.finfo(torch.float32).min)
        for arguments in ((2, 2), (3, 2, 1), (3, 3, 1, 2), (3, 1, 1, 1, True))
        for case in rows(2, *arguments, x=special(value))
    ),
    *rows(2, [24, 9], x=special(math.nan).repeat(1, 1, 3, 1)),
    Case("aten::max_pool1d", (T(2, 3, 11), [3], [2], [1]), pre_dispatch=True),
    Case(
        "aten::max_pool2d", (T(2, 7, 9), [3, 3], [2, 2], [1, 1], [1, 1], True), pre_dispatch=True
    ),
    Case("aten::max_pool2d", (special(math.nan), [3, 3], [2, 2], [1, 1]), pre_dispatch=True),
    Case("aten::max_pool2d", (special(-math.inf), [3, 3], [2, 2], [1, 1]), pre_dispatch=True),
    Case("aten::max_pool3d", (T(2, 3, 4, 5, 6), [2, 2, 2]), pre_dispatch=True),
]  # fmt: skip


test_op = table_test(CASES)
