from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from tests.export.cases import Case, T, table_test

NEAREST = {1: "upsample_nearest1d", 2: "upsample_nearest2d", 3: "upsample_nearest3d"}
LINEAR = {1: "upsample_linear1d", 2: "upsample_bilinear2d", 3: "upsample_trilinear3d"}


def rows(
    name: str,
    x: torch.Tensor,
    size: list[int],
    corners: bool | None = None,
    *factors: float | None,
    **options: Any,
) -> Iterator[Case]:
    """Yield the rows of a resizing and of its gradient."""
    align = () if corners is None else (corners,)
    factors = factors or (None,) * len(size)
    value = getattr(torch.ops.aten, name)(x, size, *align, *factors)
    yield Case(f"aten::{name}", (x, size, *align, *factors), **options)
    gradient = T(*value.shape, dtype=x.dtype)
    args = (gradient, size, list(x.shape), *align, *factors)
    yield Case(f"aten::{name}_backward", args, **options)


def vec(name: str, x: torch.Tensor, *args: Any) -> Case:
    return Case(f"aten::{name}.vec", (x, *args), pre_dispatch=True)


def with_special(value: float) -> torch.Tensor:
    x = T(1, 2, 5, 6)
    x[0, 0, 3, 3] = value
    return x


CASES = [
    *rows("upsample_nearest1d", T(2, 3, 7), [14]),
    *rows("upsample_nearest1d", T(2, 3, 7), [10]),
    *rows("upsample_nearest2d", T(2, 3, 4, 5), [8, 10]),
    *rows("upsample_nearest2d", T(2, 3, 4, 5), [8, 10], None, 2.0, 2.0),
    *rows("upsample_nearest2d", T(2, 3, 4, 5), [12, 15], None, 3.0, 3.0),
    *rows("upsample_nearest2d", T(1, 1, 7, 2), [343, 98]),  # torch rounds 1 / 49
    *rows("upsample_nearest2d", T(2, 3, 7, 6), [3, 9]),
    *rows("upsample_nearest2d", T(2, 3, 7, 6), [5, 4], None, 0.75, 0.75),
    *rows("upsample_nearest2d", T(2, 3, 4, 5, dtype=torch.float64), [8, 10]),
    *rows("upsample_nearest2d", T(2, 3, 4, 5, dtype=torch.float16), [8, 10]),
    *rows("upsample_nearest2d", with_special(math.nan), [10, 12]),
    *rows("upsample_nearest2d", with_special(math.inf), [7, 7]),
    Case("aten::upsample_nearest2d", (T(2, 3, 4, 5, dtype=torch.uint8), [8, 7])),
    *rows("upsample_nearest3d", T(2, 3, 3, 4, 5), [6, 8, 10]),
    *rows("upsample_nearest3d", T(2, 3, 3, 4, 5), [5, 8, 4]),
    *rows("_upsample_nearest_exact1d", T(2, 3, 7), [10]),
    *rows("_upsample_nearest_exact2d", T(2, 3, 4, 5), [8, 10]),
    *rows("_upsample_nearest_exact2d", T(2, 3, 7, 6), [3, 9]),
    *rows("_upsample_nearest_exact3d", T(2, 3, 3, 4, 5), [5, 8, 4]),
    *(
        case
        for corners in (False, True)
        for case in (
            *rows("upsample_linear1d", T(2, 3, 7), [14], corners),
            *rows("upsample_linear1d", T(2, 3, 7), [4], corners),
            *rows("upsample_linear1d", T(2, 3, 7), [1], corners),
            *rows("upsample_bilinear2d", T(2, 3, 4, 5), [8, 10], corners),
            *rows("upsample_bilinear2d", T(2, 3, 4, 5), [8, 10], corners, 2.0, 2.0),
            *rows("upsample_bilinear2d", T(2, 3, 4, 5), [9, 3], corners),
            *rows("upsample_bilinear2d", T(2, 3, 7, 9), [5, 6], corners, 0.75, 0.75),
            *rows("upsample_bilinear2d", T(2, 3, 7, 9), [8, 10], corners, 1.2, 1.2),
            *rows("upsample_bilinear2d", T(2, 3, 4, 5, dtype=torch.float64), [8, 10], corners),
            *rows("upsample_bilinear2d", T(2, 3, 4, 5, dtype=torch.float16), [7, 10], corners),
            *rows("upsample_trilinear3d", T(2, 3, 3, 4, 5), [6, 8, 10], corners),
            *rows("upsample_trilinear3d", T(2, 3, 3, 4, 5), [5, 3, 4], corners),
            *rows("upsample_bicubic2d", T(2, 3, 4, 5), [8, 10], corners),
            *rows("upsample_bicubic2d", T(2, 3, 4, 5), [9, 3], corners),
            *rows("upsample_bicubic2d", T(2, 3, 7, 9), [8, 10], corners, 1.2, 1.2),
        )
    ),
    vec("upsample_nearest1d", T(2, 3, 7), [10], None),
    vec("upsample_nearest2d", T(2, 3, 4, 5), None, [2.0, 2.0]),
    vec("upsample_nearest2d", T(2, 3, 4, 5), None, [1.7, 0.6]),
    vec("upsample_nearest3d", T(2, 3, 3, 4, 5), [5, 8, 4], None),
    vec("_upsample_nearest_exact1d", T(2, 3, 7), [10], None),
    vec("_upsample_nearest_exact2d", T(2, 3, 4, 5), None, [2.0, 2.0]),
    vec("_upsample_nearest_exact3d", T(2, 3, 3, 4, 5), [5, 8, 4], None),
    vec("upsample_linear1d", T(2, 3, 7), None, False, [1.5]),
    vec("upsample_bilinear2d", T(2, 3, 4, 5), None, False, [2.0, 2.0]),
    vec("upsample_bilinear2d", T(2, 3, 4, 5), [7, 7], True, None),
    vec("upsample_trilinear3d", T(2, 3, 3, 4, 5), None, True, [2.0, 2.0, 2.0]),
    vec("upsample_bicubic2d", T(2, 3, 4, 5), None, False, [1.7, 2.0]),
]


test_op = table_test(CASES)
