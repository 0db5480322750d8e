from __future__ import annotations

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from dort_rewriter.errors import UnsupportedOpError
from dort_rewriter.export.dispatcher import Dispatcher
from dort_rewriter.export.interpreter import convert_graph
from tests.export.cases import Case, T, check, table_test

I = torch.tensor  # noqa: E741
PAIR, COLUMN = I([0, -1]), I([[1], [0], [-2]])
NONE = torch.zeros(0, dtype=torch.int64)
MASK = I([True, False, True])

CASES = [
    Case("aten::index.Tensor", (T(3, 4, 5), [None, PAIR])),
    Case("aten::index.Tensor", (T(3, 4, 5), [I(-1)])),
    Case("aten::index.Tensor", (T(3, 4, 5), [PAIR, COLUMN])),
    Case("aten::index.Tensor", (T(3, 4, 5), [None, PAIR, COLUMN])),
    Case("aten::index.Tensor", (T(3, 4, 5), [None, I(1), I(-1)])),
    Case("aten::index.Tensor", (T(3, 4, 5), [PAIR, None, COLUMN])),
    Case("aten::index.Tensor", (T(2, 3, 4, 5), [None, PAIR, None, COLUMN])),
    Case("aten::index.Tensor", (T(3, 4, dtype=torch.bool), [PAIR, I([1, 2], dtype=torch.int32)])),
    Case(
        "aten::index.Tensor", (T(3, 4, 0), [None, PAIR, NONE[None].reshape(0, 1)]), dynamic=False
    ),
    Case("aten::index.Tensor", (T(3, 4), [NONE]), dynamic=False),
    Case("aten::_unsafe_index.Tensor", (T(2, 3, 4, 5), [None, None, COLUMN, PAIR])),
    Case("aten::index_put", (T(3, 4), [PAIR], T(2, 4))),
    Case("aten::index_put", (T(3, 4), [PAIR], T())),
    Case("aten::index_put", (T(3, 4), [PAIR, PAIR], T(2))),
    Case("aten::index_put", (T(3, 4, 5), [None, PAIR], T(3, 2, 1))),
    Case("aten::index_put", (T(3, 4, 5), [None, PAIR, COLUMN], T(3, 2))),
    Case("aten::index_put", (T(3, 4, 5), [PAIR, None, COLUMN], T(3, 2, 4))),
    Case("aten::index_put", (T(3, 4), [I(-1)], T(4))),
    Case("aten::index_put", (T(3, 4), [NONE], T(0, 4)), dynamic=False),
    Case("aten::index_put", (T(3, 4), [I([0, 0, -3])], T(3, 4), True)),
    Case("aten::index_put", (T(3, 4), [I([0, 0]), I([1, -3])], T(), True)),
    Case("aten::index_put", (T(3, 4, 5), [None, I([1, 1]), I([0, 0])], T(3, 2), True)),
    Case("aten::index_put", (T(3, 4, 5), [I([1, 1]), None, I([0, 0])], T(2, 4), True)),
    Case("aten::index_put", (T(3, dtype=torch.int64), [I([1, 1])], I([2, 3]), True)),
    Case("aten::index_put", (T(3, dtype=torch.float16), [I([1, 1])], T().half(), True)),
    Case("aten::index_put", (T(3, 4), [I(2)], T(4), True)),
    Case("aten::index_put", (T(3, dtype=torch.bool), [I([1, 1])], I([True, False]), True)),
    Case("aten::index_put", (T(3, 4), [MASK], T(1))),
    Case("aten::index_put", (T(3, 4), [MASK], T(4), True)),
    Case("aten::index_put", (T(3, 4), [MASK], T(2, 4))),
    Case("aten::index_put", (T(3, 4), [MASK], T(1, 4))),
    Case("aten::index_put", (T(4, 3), [None, MASK], T())),
    Case("aten::index_put", (T(3, 4), [T(3, 4, dtype=torch.bool)], T(), True)),
    Case("aten::_unsafe_index_put", (T(3, 4), [PAIR, PAIR], T(2), False)),
    Case("aten::masked_scatter", (T(3, 4), T(3, 4, dtype=torch.bool), T(12))),
    Case("aten::masked_scatter", (T(3, 4), I([True, False, True, True]), T(3, 4))),
    Case("aten::masked_scatter", (T(3), I([False, False, False]), T(0)), dynamic=False),
]


OTHERS = {"aten::masked_select"}
HOLED = I([[True, False, False, True], [False, False, True, False], [True, True, False, False]])
SELECTED = [
    Case("aten::index.Tensor", (T(3, 4), [MASK]), static=False),
    Case("aten::index.Tensor", (T(4, 3), [None, MASK]), static=False),
    Case("aten::index.Tensor", (T(3, 4), [HOLED]), static=False),
    Case("aten::index.Tensor", (T(2, 3, 4), [None, HOLED]), static=False),
    Case("aten::index.Tensor", (T(3, 4, 5), [HOLED]), static=False),
    Case("aten::index.Tensor", (T(3, 4), [torch.zeros(3, dtype=torch.bool)]), static=False),
    Case("aten::masked_select", (T(3, 4), HOLED), static=False),
    Case("aten::masked_select", (T(3, 1), I([True, False, True, True])), static=False),
    Case("aten::masked_select", (T(3, 4), HOLED[:, :1]), static=False),
    Case("aten::index_put", (T(4, 3), [None, MASK], T(4, 2))),
    Case("aten::index_put", (T(4, 3), [None, MASK], T(2), True)),
    Case("aten::index_put", (T(3, 4), [MASK, PAIR], T(2))),
    Case("aten::index_put", (T(4, 3), [torch.tensor([2, 0, 255, 0], dtype=torch.uint8)], T(2, 3))),
    Case("aten::index_put", (T(2, 3, 4), [PAIR, HOLED[0, :3]], T(2, 4))),
]


@pytest.mark.parametrize("case", SELECTED, ids=str)
def test_what_a_mask_selects(case: Case) -> None:
    check(case)


def test_no_index_is_refused() -> None:
    def assign(x: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.index_put.default(x, [None], values)

    traced = make_fx(assign, tracing_mode="fake")(T(4, 3), T(3))
    with pytest.raises(UnsupportedOpError, match="there is no index"):
        convert_graph(traced, Dispatcher())


def test_sums_at_an_index_met_often_are_whole() -> None:
    x, places = torch.zeros(10, 8), torch.arange(50_000) % 10
    values = torch.ones(50_000, 8)
    check(Case("aten::index_put", (x, [places], values, True)))


test_op = table_test(CASES)
