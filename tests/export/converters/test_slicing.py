from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from dort_rewriter.export.dispatcher import Dispatcher
from dort_rewriter.export.interpreter import convert_graph
from dort_rewriter.runtime.executor import Executor
from dort_rewriter.runtime.session import create_session
from tests.export.cases import Case, T, run, table_test

CASES = [
    Case("aten::select.int", (T(2, 3, 4), -2, -1)),
    Case("aten::select.int", (T(3, dtype=torch.bool), 0, 1)),
    Case("aten::select_copy.int", (T(2, 3), 0, 1)),
    Case("aten::slice.Tensor", (T(5, 6), 1, 1, -1, 2)),
    Case("aten::slice.Tensor", (T(5, 6), -1, -4, None)),
    Case("aten::slice.Tensor", (T(5, 6), 0, None, 100)),
    Case("aten::slice.Tensor", (T(5, 6), 0, -100, 2)),
    Case("aten::slice.Tensor", (T(5, 6), 0, 4, 2)),
    Case("aten::slice.Tensor", (T(5, 6, dtype=torch.int8),)),
    Case("aten::slice.Tensor", (T(0, 6), 0, 0, 3), dynamic=False),
    Case("aten::slice_copy.Tensor", (T(5, 6), 0, 1, 3)),
    Case("aten::slice_scatter", (T(5, 6), T(2, 6), 0, 1, 3)),
    Case("aten::slice_scatter", (T(5, 6), T(5, 2), 1, -2, 100)),
    Case("aten::slice_scatter", (T(5, 6), T(5, 3), -1, 0, None, 2)),
    Case("aten::slice_scatter", (T(5, 6), T(2, 6), 0, 1, -1, 2)),
    Case("aten::slice_scatter", (T(5, 6), T(5, 6))),
    Case("aten::slice_scatter", (T(5, 6), T(0, 6), 0, 3, 1), dynamic=False),
    Case("aten::slice_scatter", (T(5, 6), T(0, 6), 0, 7, 9), dynamic=False),
    Case("aten::slice_scatter", (T(5, 6) > 0, T(2, 6, dtype=torch.int64), 0, 1, 3)),
    Case("aten::slice_scatter", (T(5, 6) > 0, T(5, 6, dtype=torch.int64))),
    Case("aten::select_scatter", (T(5, 6, dtype=torch.float64), T(5) > 0, 1, -1)),
    Case("aten::select_scatter", (T(5, 6), T(5), 1, -1)),
    Case("aten::select_scatter", (T(5, 6), T(6), 0, 2)),
    Case("aten::select_scatter", (T(1), T(), 0, 0)),
    Case("aten::slice_backward", (T(2, 6), [5, 6], 0, 1, 3, 1)),
    Case("aten::slice_backward", (T(5, 3), [5, 6], -1, -6, 9223372036854775807, 2)),
    Case("aten::slice_backward", (T(5, 2), [5, 6], 1, 1, 5, 3)),
    Case("aten::slice_backward", (T(5, 6), [5, 6], 1, 0, 6, 1)),
    Case("aten::slice_backward", (T(5, 0), [5, 6], 1, 6, 6, 1), dynamic=False),
    Case("aten::select_backward", (T(5), [5, 6], -1, -2)),
    Case("aten::select_backward", (T(), [3], 0, 1)),
]


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: x[: y.shape[0]],
        lambda x, y: x[y.shape[0] - 1],
        lambda x, y: torch.slice_scatter(x, y, 0, 1, 1 + y.shape[0]),
        lambda x, y: torch.slice_scatter(x, y, 0, -3),
        lambda x, y: torch.slice_scatter(x, y[3:1], 0, 4, y.shape[0]),
        lambda x, y: torch.slice_scatter(x, y[: y.shape[0] - 3], 0, y.shape[0], 1),
        lambda x, y: torch.slice_scatter(x, y[: y.shape[0] - 3], 0, x.shape[0], 1, 2),
        lambda x, y: torch.ops.aten.slice_backward(y, x.shape, 0, 1, 1 + y.shape[0], 1),
        lambda x, y: torch.ops.aten.slice_backward(y[:2], x.shape, 0, 1, 4, 2),
        lambda x, y: torch.ops.aten.select_backward(y[0], x.shape, 0, y.shape[0]),
    ],
    ids=range(10),
)
def test_symbolic_positions(function: Callable[..., torch.Tensor]) -> None:
    x, y = T(7, 4), T(3, 4)
    with torch.no_grad():
        traced = make_fx(function, tracing_mode="symbolic")(x, y)
    (got,) = run(traced, [x, y], 18)
    torch.testing.assert_close(got, function(x, y), rtol=0, atol=0)


test_op = table_test(CASES)


def test_a_transpose_before_what_is_padded() -> None:
    """onnxruntime 1.19 moves it behind: no session when only one axis of the Pad is given."""

    def function(x: torch.Tensor) -> torch.Tensor:
        wide = torch.ops.aten.slice_backward(x.permute(0, 2, 1, 3), [2, 3, 4, 9], 3, 4, 9, 1)
        return wide.permute(0, 2, 1, 3) * 2

    x = torch.randn(2, 4, 3, 5)
    exported = convert_graph(make_fx(function, tracing_mode="fake")(x), Dispatcher())
    executor = Executor(create_session(exported.model), exported.signature)
    torch.testing.assert_close(executor(x)[0], function(x))
