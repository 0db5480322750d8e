"""Quotients, remainders and common divisors; numbers rounded."""

from __future__ import annotations

import math

import onnxruntime
import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from dort_rewriter import UnsupportedOpError, to_onnx
from dort_rewriter.export.dispatcher import Dispatcher
from dort_rewriter.export.interpreter import convert_graph
from tests.export.cases import Case, T, table_test

HALVES = torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5, 2.4, -2.6, math.nan, math.inf])
WHOLE = T(2, 3, dtype=torch.int64)

ROUNDING = [
    *(
        Case(f"aten::{n}", (x,))
        for n in ("ceil", "floor", "trunc", "round")
        for x in (HALVES, WHOLE)
    ),
    Case("aten::frac", (HALVES,)),
    *(Case("aten::round.decimals", (T(3, 4) * 100,), {"decimals": d}) for d in (-2, 0, 1)),
]


INT = torch.tensor([7, -7, 6, -6, 0, 1])
J = torch.tensor([3, -3, 2, -2, 5, -1])
X = torch.tensor([1.0, -1.0, 5.5, -5.5, 0.0, 7.0, math.inf, 3.0])
Y = torch.tensor([0.1, 0.1, 2.0, -2.0, 3.0, 0.0, 2.0, -math.inf])
LOWEST = torch.tensor([-(2**63), -(2**63) + 1, 2**63 - 1, -(2**31)])
MINUS_ONES = torch.tensor([-1, -1, -1, -1])
BYTE = torch.tensor([127, -128, 5], dtype=torch.int32)


# NOTE: the processor stops a program that divides the lowest integer by -1, and torch 2.8 lets it.


def _opposite(a: torch.Tensor, b: torch.Tensor | int) -> torch.Tensor:
    return -a


def _nothing(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(a)


DIVISION = [
    Case("aten::div.Tensor", (INT, J), dynamic=False),  # torch 2.8 records integers
    Case("aten::div.Tensor", (T(2, 3), T())),
    Case("aten::div.Scalar", (INT, 2)),
    *(
        Case("aten::div.Tensor_mode", (a, b), {"rounding_mode": mode})
        for mode in (None, "trunc", "floor")
        for a, b in ((INT[:, None], J), (X[:, None], Y))
    ),
    Case("aten::div.Scalar_mode", (INT, -4), {"rounding_mode": "floor"}),
    Case("aten::div.Scalar_mode", (X, 0.1), {"rounding_mode": "floor"}),
    Case("aten::floor_divide", (INT[:, None], J)),
    Case("aten::floor_divide", (X[:, None], Y)),
    Case("aten::floor_divide.Scalar", (INT, -2)),
    Case("aten::floor_divide.Scalar", (torch.tensor([2**63 - 1, -(2**63) + 1]), -2)),
    Case("aten::remainder.Tensor", (INT[:, None], J)),
    Case("aten::remainder.Tensor", (X[:, None], Y)),
    Case("aten::remainder.Scalar", (INT, -4)),
    Case("aten::remainder.Scalar", (INT, 2.5)),
    Case("aten::remainder.Scalar_Tensor", (7, J)),
    Case("aten::fmod.Tensor", (INT[:, None], J)),
    Case("aten::fmod.Tensor", (X[:, None], Y)),
    Case("aten::fmod.Scalar", (X, -2)),
    *(
        Case(f"aten::{op}", (LOWEST, MINUS_ONES), reference=expected)
        for op, expected in (
            ("floor_divide", _opposite),
            ("remainder.Tensor", _nothing),
            ("fmod.Tensor", _nothing),
        )
    ),
    Case("aten::floor_divide", (LOWEST.int(), MINUS_ONES.int()), reference=_opposite),
    Case("aten::floor_divide.Scalar", (LOWEST, -1), reference=_opposite),
    Case("aten::floor_divide.Scalar", (INT, 2.5)),
    Case("aten::floor_divide", (torch.tensor([True, False]), J[:2])),
    Case("aten::floor_divide", (torch.tensor([200, 7], dtype=torch.uint8), J[:2].to(torch.int8))),
    Case("aten::div.Tensor_mode", (X.half()[:, None], Y.half()), {"rounding_mode": "trunc"}),
    Case("aten::div.Tensor_mode", (X.half()[:, None], Y.half()), {"rounding_mode": "floor"}),
    Case(
        "aten::div.Tensor_mode",
        (torch.tensor([1.0, -0.0, 0.0]), torch.tensor([math.inf, 2, -3])),
        {"rounding_mode": "floor"},
    ),
]


TYPES = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def _numbers(dtype: torch.dtype) -> torch.Tensor:
    """Zeros, the ends of a type, and two of Fibonacci's numbers, which take the most steps."""
    ends = torch.iinfo(dtype)
    few = [0, 1, 2, 3, 6, 35, 84, 89, 55, ends.max, ends.max - 1, ends.max // 3]
    wide = [2971215073, 4807526976] if ends.bits > 32 else []
    return torch.tensor([*few, *wide, *([ends.min, ends.min + 1, -1, -6] if ends.min else [])]).to(
        dtype
    )


DIVISORS = [
    *(Case("aten::gcd", (_numbers(t)[:, None], _numbers(t))) for t in TYPES),
    Case("aten::gcd", (torch.tensor(12), torch.tensor(-18))),
    Case("aten::gcd", (torch.zeros(0, 3, dtype=torch.int32), torch.tensor(4, dtype=torch.int32))),
    Case("prims::gcd", (torch.tensor([12, -18, 0, 7]), torch.tensor([8, 27, 5, 0]))),
]

CASES = [*ROUNDING, *DIVISION, *DIVISORS]

test_op = table_test(CASES)


class _Divisors(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.gcd(x, y), torch.lcm(x, y)


# NOTE: onnxruntime 1.19 cannot compare uint8.
@pytest.mark.parametrize("dtype", TYPES[:-1], ids=str)
def test_files_have_divisors_and_multiples(dtype: torch.dtype) -> None:
    numbers = _numbers(dtype)
    numbers = numbers[numbers.long() != torch.iinfo(dtype).min]  # undefined in C++
    x, y = (n.flatten() for n in torch.meshgrid(numbers, numbers, indexing="ij"))
    model = to_onnx(_Divisors(), (x, y))
    session = onnxruntime.InferenceSession(model.SerializeToString())
    names = [i.name for i in session.get_inputs()]
    for got, expected in zip(
        session.run(None, dict(zip(names, (x.numpy(), y.numpy()), strict=True))),
        _Divisors()(x, y),
        strict=True,
    ):
        assert torch.equal(torch.from_numpy(got), expected)


def test_a_division_by_a_known_zero_is_refused() -> None:
    traced = make_fx(lambda x: x // 0, tracing_mode="fake")(torch.arange(2))
    with pytest.raises(UnsupportedOpError, match="an integer divided by zero"):
        convert_graph(traced, Dispatcher())
