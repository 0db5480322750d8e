from __future__ import annotations

import math

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from dort_rewriter.export.registry import op_name
from tests.export.cases import Case, T, overload, run, table_test

X = T(2, 3)

OTHERS = {"aten::lift_fresh"}
"""Gone once traced; T5, among the models, needs it not to be decomposed."""
CASES = [
    *(Case(f"aten::{name}", (X,)) for name in ("alias", "clone", "detach", "lift_fresh_copy")),
    *(
        Case("aten::_to_copy", (x,), {"dtype": dtype})
        for x in (torch.tensor([-1.5, 0.5, 0.0, 2.9]), T(2, 3, dtype=torch.int64))
        for dtype in (torch.float64, torch.int32, torch.int64, torch.bool, torch.float32)
    ),
    Case("aten::_to_copy", (torch.tensor([math.nan, 0.0]),), {"dtype": torch.bool}),
    Case("aten::_to_copy", (X,)),
    Case("aten::copy", (X, T(3, dtype=torch.int64))),
]


test_op = table_test(CASES)


@pytest.mark.parametrize(
    ("name", "args"), [("prims::view_of", ()), ("prims::convert_element_type", (torch.int32,))]
)
def test_prim(name: str, args: tuple[object, ...]) -> None:
    function = overload(name)
    x = torch.tensor([1.5, -2.5])
    traced = make_fx(lambda t: function(t, *args), tracing_mode="fake")(x)
    assert name in [op_name(n.target) for n in traced.graph.nodes]
    (got,) = run(traced, [x], 18)
    torch.testing.assert_close(got, function(x, *args))


@pytest.mark.parametrize(
    ("types", "numbers"),
    [
        ((torch.int64, torch.bool), [0.5, -0.3, 0.0, 1.0]),
        ((torch.int32, torch.bool), [0.5, -0.3, 0.0, 1.0]),
        ((torch.int8, torch.bool), [0.5, -0.3, 0.0, 1.0]),
        ((torch.uint8, torch.bool), [0.5, 0.0, 1.0]),
        ((torch.float16, torch.bool), [1e-9, 0.0, -1.0, math.nan]),
        ((torch.bfloat16, torch.bool), [1e-42, 0.0, -1.0]),
        ((torch.int64, torch.int32), [2.0**33, 2.0**33 + 2048, -1.5, 3.0]),
        ((torch.int64, torch.int16), [2.0**33, 70000.5, -1.5, 3.0]),
        ((torch.int64, torch.uint8), [2.0**33, 300.5, 3.0]),
        ((torch.int64, torch.int32, torch.bool), [2.0**33, 0.5, 3.0]),
    ],
    ids=str,
)
@pytest.mark.parametrize("first", [torch.float32, torch.float64])
def test_casts_are_not_merged(
    first: torch.dtype, types: tuple[torch.dtype, ...], numbers: list[float]
) -> None:
    def convert(x: torch.Tensor) -> torch.Tensor:
        for dtype in types:
            x = x.to(dtype)
        return x

    x = torch.tensor(numbers, dtype=first)
    traced = make_fx(convert, tracing_mode="fake")(x)
    (got,) = run(traced, [x], 18)
    torch.testing.assert_close(got, convert(x))
