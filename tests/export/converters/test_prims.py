"""Primitive operators: alone, and as the full table of decompositions leaves models."""

from __future__ import annotations

from typing import Any

import torch

from dort_rewriter.export.converters.prims import ATEN_NAMES
from dort_rewriter.export.registry import builtin_converters
from tests.export.cases import Case, T, table_test

X, POSITIVE = T(2, 3), T(2, 3).abs() + 0.5
WHOLE, OTHER = T(2, 3, dtype=torch.int64), T(2, 3, dtype=torch.int64).abs() + 1
CPU = torch.device("cpu")
MADE: dict[str, Any] = {"dtype": torch.float32, "device": CPU, "requires_grad": False}

_UNARY = (
    "abs acos acosh asin asinh atan atanh bessel_i0 bessel_i0e bessel_i1 bessel_i1e bessel_j0 "
    "bessel_j1 cbrt ceil clone cos cosh digamma erf erf_inv erfc erfcx exp exp2 expm1 floor "
    "isfinite lgamma log log10 log1p log2 ndtri neg reciprocal round rsqrt sign sin sinh "
    "spherical_bessel_j0 sqrt tan tanh trunc"
)
_BINARY = (
    "add atan2 div eq fmax fmin fmod ge gt hypot le lt maximum minimum mul ne pow remainder sub"
)
_INTEGERS = (
    "add bitwise_and bitwise_or bitwise_xor div eq fmod gt maximum mul remainder shift_left "
    "shift_right_arithmetic sub"
)

CASES = [
    *(Case(f"prims::{name}", (POSITIVE / 4,)) for name in _UNARY.split() if name != "acosh"),
    Case("prims::acosh", (POSITIVE + 1,)),
    *(Case(f"prims::{name}", (POSITIVE, POSITIVE.flip(0))) for name in _BINARY.split()),
    *(Case(f"prims::{name}", (WHOLE, OTHER)) for name in _INTEGERS.split()),
    Case("prims::bitwise_not", (WHOLE,)),
    Case("prims::isfinite", (WHOLE,)),
    Case("prims::amax", (X, [1])),
    Case("prims::amin", (X, [0, 1])),
    Case("prims::as_strided_scatter", (X, T(2, 2), [2, 2], [1, 2], 1), dynamic=False),
    Case("prims::broadcast_in_dim", (X, [4, 2, 5, 3], [1, 3])),
    Case("prims::broadcast_in_dim", (T(2, 1), [2, 3], [0, 1])),
    Case("prims::broadcast_in_dim", (T(), [2, 3], [])),
    Case("prims::cat", ([X, X], 1)),
    Case("prims::collapse", (T(2, 3, 4), 0, 1)),
    Case("prims::collapse_view", (T(2, 3, 4), 1, 2)),
    Case("prims::convert_element_type", (X, torch.int32)),
    Case("prims::device_put", (X, CPU)),
    Case("prims::fill", (X, 2.5)),
    Case("prims::frexp", (X,)),
    Case("prims::full", ([2, 3], 1.5), MADE),
    Case("prims::full_like", (X, 1.5), MADE),
    Case("prims::iota", (5,), {**MADE, "start": 2, "step": 3, "dtype": torch.int64}),
    *(Case("prims::pow", (POSITIVE, number)) for number in (1.5, 2, -0.5)),
    Case("prims::prod", (X, [0])),
    Case("prims::prod", (T(2, 3, 2), [0, 2])),
    Case("prims::reshape", (X, [3, 2])),
    Case("prims::rev", (X, [0, 1])),
    Case("prims::scalar_tensor", (1.5,), {"dtype": torch.float32, "device": CPU}),
    *(
        # torch records the type of the elements, and lets a cast follow.
        Case("prims::signbit", (x,), reference=lambda x: torch.signbit(x).to(x.dtype))
        for x in (torch.tensor([-1.5, -0.0, 0.0, 2.0]), WHOLE)
    ),
    Case("prims::split_dim", (T(2, 6), 1, 2)),
    Case("prims::squeeze", (T(2, 1, 3, 1), [1, 3])),
    Case("prims::sum", (X, [1])),
    Case("prims::sum", (X, [0, 1])),
    Case("prims::transpose", (T(2, 3, 4), [2, 0, 1])),
    Case("prims::var", (X, [1], 1.0)),
    Case("prims::var", (X, [0, 1], 0.0)),
    Case("prims::where", (X > 0, X, -X)),
]

UNTESTED = {"empty", "empty_permuted", "empty_strided"}
"""What torch leaves uninitialized has no values to compare."""

OTHERS = {"prims::fma", "prims::gcd", "prims::view_of"}
"""With rows in the tables of their families."""


def _is_there(case: Case) -> bool:
    return hasattr(torch.ops.prims, case.op.removeprefix("prims::"))


test_op = table_test([c for c in CASES if _is_there(c)])


def test_every_primitive_has_a_row() -> None:
    rows = {case.op for case in CASES} | OTHERS | {f"prims::{name}" for name in UNTESTED}
    drawn = {"prims::normal", "prims::uniform"}  # in the tests of what draws
    wanted = {name for name in builtin_converters() if name.startswith("prims::")}
    assert wanted - rows - drawn == set()
    assert {f"prims::{name}" for name in ATEN_NAMES} <= wanted
