from __future__ import annotations

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from dort_rewriter.errors import UnsupportedOpError
from dort_rewriter.export.dispatcher import Dispatcher
from dort_rewriter.export.interpreter import convert_graph
from tests.export.cases import Case, T, run, table_test

CASES = [
    Case("aten::as_strided", (T(3, 4), [2, 3], [1, 4], 1), dynamic=False),
    Case("aten::as_strided", (T(12), [3, 4], [4, 1]), dynamic=False),
    Case("aten::as_strided", (T(12), [4, 3], [1, 4]), dynamic=False),
    Case("aten::as_strided", (T(12), [5, 4], [0, 1], 2), dynamic=False),
    Case("aten::as_strided", (T(12), [5, 3], [2, 1]), dynamic=False),
    Case("aten::as_strided", (T(3, 4), [3, 4], [4, 1]), dynamic=False),
    Case("aten::as_strided", (T(12, dtype=torch.bool), [], [], 7), dynamic=False),
    Case("aten::as_strided", (T(12), [2, 0], [1, 1]), dynamic=False),
    Case("aten::as_strided_copy", (T(3, 4), [4], [1], 4), dynamic=False),
    Case("aten::as_strided_scatter", (T(3, 4), T(2, 2), [2, 2], [4, 2], 1), dynamic=False),
    Case("aten::as_strided_scatter", (T(3, 4), T(2, 2) > 0, [2, 2], [4, 2], 1), dynamic=False),
    Case("aten::as_strided_scatter", (T(3, 4), T(12), [12], [1]), dynamic=False),
    Case("aten::as_strided_scatter", (T(3, 4), T(0), [0], [1]), dynamic=False),
]


def test_dense_base_in_another_order() -> None:
    def read(x: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.as_strided.default(x.t(), [2, 5], [1, 2])

    x = T(3, 4)
    traced = make_fx(read, tracing_mode="fake")(x)
    (got,) = run(traced, [x], 18)
    torch.testing.assert_close(got, read(x), rtol=0, atol=0)


@pytest.mark.parametrize(
    "arguments", [([3], [6], 0), ([2], [1], 3)], ids=["past the end", "a base with holes"]
)
def test_what_is_no_view_of_the_base_is_refused(arguments: tuple[object, ...]) -> None:
    def read(x: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.as_strided.default(x[:, :2], *arguments)

    traced = make_fx(read, tracing_mode="fake")(T(3, 4))
    with pytest.raises(UnsupportedOpError, match="as_strided is taken with known sizes"):
        convert_graph(traced, Dispatcher())


test_op = table_test(CASES)
