from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from dort_rewriter import to_onnx
from tests.export.cases import Case, T, table_test


def rows(*shape: int, to: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Iterator[Case]:
    """Yield the rows of a pooling to a size: average, maximum, their gradients."""
    x, rank = T(*shape, dtype=dtype), len(to)
    size, dynamic = list(to), all(n == 1 for n in to)
    early = rank == 1
    names = (f"_adaptive_avg_pool{rank}d", f"adaptive_max_pool{rank}d")
    average = names[0].removeprefix("_") if early else names[0]
    yield Case(f"aten::{average}", (x, size), dynamic=dynamic, pre_dispatch=early)
    yield Case(f"aten::{names[1]}", (x, size), dynamic=dynamic, pre_dispatch=early)
    if early:
        return
    value, index = getattr(torch.ops.aten, names[1])(x, size)
    gradient = T(*value.shape, dtype=dtype)
    yield Case(f"aten::{names[0]}_backward", (gradient, x), dynamic=dynamic)
    yield Case(f"aten::{names[1]}_backward", (gradient, x, index), dynamic=dynamic)


def with_nan() -> torch.Tensor:
    x = T(1, 2, 7, 10)
    x[0, 0, 3:6, 3], x[0, 1, 2, :4] = math.nan, math.nan
    return x


CASES = [
    *rows(2, 3, 12, to=(4,)),
    *rows(2, 3, 11, to=(4,)),
    *rows(3, 11, to=(15,)),
    *rows(2, 3, 7, to=(1,)),
    *rows(2, 3, 8, 12, to=(2, 4)),
    *rows(2, 3, 7, 10, to=(3, 4)),
    *rows(2, 3, 7, 10, to=(9, 4)),
    *rows(2, 3, 7, 10, to=(3, 10)),
    *rows(2, 3, 7, 10, to=(1, 1)),
    *rows(2, 3, 18, 20, to=(1, 1)),
    *rows(3, 7, 10, to=(3, 4)),
    *rows(2, 3, 4, 3, to=(4, 3)),
    Case("aten::_adaptive_avg_pool2d", (T(0, 3, 7, 10), [3, 4]), dynamic=False),
    *rows(0, 3, 8, 12, to=(2, 4)),
    Case("aten::_adaptive_avg_pool2d", (T(0, 3, 8, 12), [1, 1]), dynamic=False),
    *rows(2, 3, 7, 10, to=(3, 4), dtype=torch.float64),
    *rows(2, 3, 6, 8, to=(3, 4), dtype=torch.float64),
    *rows(2, 3, 7, 10, to=(3, 4), dtype=torch.float16),
    *rows(2, 3, 4, 6, 8, to=(2, 3, 4)),
    *rows(2, 3, 5, 6, 7, to=(2, 4, 3)),
    Case("aten::_adaptive_avg_pool2d", (with_nan(), [3, 4]), dynamic=False),
    Case("aten::adaptive_max_pool2d", (with_nan(), [3, 4]), dynamic=False),
    Case("aten::adaptive_max_pool2d", (with_nan(), [7, 5]), dynamic=False),
    Case("aten::adaptive_avg_pool2d", (T(2, 3, 6, 6), [3, 3]), dynamic=False, pre_dispatch=True),
    Case(
        "aten::adaptive_avg_pool3d", (T(2, 4, 5, 6), [2, 3, 3]), dynamic=False, pre_dispatch=True
    ),
]


test_op = table_test(CASES)


def test_equal_windows_are_pooled_at_once() -> None:
    pool = torch.nn.AdaptiveAvgPool2d((2, 4))
    equal, others = (to_onnx(pool, (T(1, 2, *size),)) for size in ((8, 12), (7, 12)))
    assert "AveragePool" in {n.op_type for n in equal.graph.node}
    assert "AveragePool" not in {n.op_type for n in others.graph.node}
