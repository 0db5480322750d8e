from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from tests.export.cases import Case, T, table_test


def rows(
    name: str, x: torch.Tensor, padding: list[int], *, dynamic: bool = True
) -> Iterator[Case]:
    """Yield the rows of a padding and of its gradient."""
    yield Case(f"aten::{name}", (x, padding), dynamic=dynamic)
    gradient = T(*getattr(torch.ops.aten, name)(x, padding).shape, dtype=x.dtype)
    yield Case(f"aten::{name}_backward", (gradient, x, padding), dynamic=dynamic)


CASES = [
    *rows("reflection_pad1d", T(2, 3, 6), [2, 3]),
    *rows("reflection_pad1d", T(3, 6), [0, 5]),
    *rows("reflection_pad1d", T(2, 3, 6), [0, 0]),
    *rows("reflection_pad2d", T(2, 3, 5, 6), [1, 2, 3, 4]),
    *rows("reflection_pad2d", T(3, 5, 6), [3, 0, 0, 1]),
    *rows("reflection_pad2d", T(2, 3, 5, 6, dtype=torch.float64), [1, 2, 3, 4]),
    *rows("reflection_pad2d", T(2, 3, 5, 6, dtype=torch.float16), [1, 2, 3, 4]),
    *rows("reflection_pad2d", T(2, 3, 5, 6) * math.inf, [1, 2, 3, 4]),
    *rows("reflection_pad3d", T(2, 3, 4, 5, 6), [1, 2, 3, 4, 1, 3]),
    *rows("replication_pad1d", T(2, 3, 6), [2, 7]),
    *rows("replication_pad1d", T(2, 3, 1), [2, 1]),
    *rows("replication_pad2d", T(2, 3, 5, 6), [1, 2, 3, 4]),
    *rows("replication_pad2d", T(3, 5, 6), [3, 0, 0, 1]),
    *rows("replication_pad2d", T(2, 3, 5, 6), [-1, 2, 3, -2]),
    *rows("replication_pad2d", T(2, 3, 5, 6), [-1, -2, 0, 0]),
    *rows("replication_pad2d", T(2, 3, 4, 4), [-4, 5, 0, 0], dynamic=False),
    *rows("replication_pad2d", T(2, 3, 4, 4), [5, -4, -4, 3], dynamic=False),
    *rows("replication_pad2d", T(2, 3, 5, 6, dtype=torch.float64), [1, 2, 3, 4]),
    *rows("replication_pad2d", T(2, 3, 5, 6, dtype=torch.float16), [1, 2, 3, 4]),
    *rows("replication_pad3d", T(2, 3, 4, 5, 6), [1, 2, 3, 4, 1, 3]),
    Case("aten::constant_pad_nd", (T(2, 3), [1, 2])),
    Case("aten::constant_pad_nd", (T(2, 3), [0, 1, 2, 0], 1.5)),
    Case("aten::constant_pad_nd", (T(2, 5), [-1, -2])),
    Case("aten::constant_pad_nd", (T(2, 5), [-1, 2, 1, 0], float("-inf"))),
    Case("aten::constant_pad_nd", (T(2, 3, dtype=torch.int64), [1, 1], 7)),
    Case("aten::constant_pad_nd", (T(2, 3, dtype=torch.bool), [1, 1], True)),
    Case("aten::constant_pad_nd", (T(2, 3), [])),
    Case("aten::constant_pad_nd", (T(2, 3), [2, -3]), dynamic=False),
    Case("aten::constant_pad_nd", (T(2, 1), [-1, 2, 0, 1], 7.0), dynamic=False),
    Case("aten::constant_pad_nd", (T(2, 3, dtype=torch.float64), [1, -3, -2, 1]), dynamic=False),
    Case("aten::constant_pad_nd", (T(2, 3, dtype=torch.int64), [-3, 1]), dynamic=False),
    Case("aten::constant_pad_nd", (T(2, 3, dtype=torch.bool), [1, -3]), dynamic=False),
]


test_op = table_test(CASES)
