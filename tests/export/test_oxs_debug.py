from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from dort_rewriter import Dispatcher, OxsDebugDispatcher
from dort_rewriter.export.interpreter import convert_graph
from dort_rewriter.export.oxs_debug import Comparison

X = torch.arange(6.0).reshape(2, 3)


def _trace() -> torch.fx.GraphModule:
    return make_fx(lambda x: torch.relu(x + 1), tracing_mode="fake")(torch.zeros(2, 3))


def test_both_sides_agree_with_torch() -> None:
    dispatcher = OxsDebugDispatcher()
    exported = convert_graph(_trace(), dispatcher)
    assert {n.op_type for n in exported.model.graph} == {"Add", "Relu"}
    assert [c.op for c in dispatcher.report] == ["aten::add.Tensor", "aten::relu"]
    assert all(c.ours == 0 and c.torchlib == 0 for c in dispatcher.report)


def test_a_wrong_converter_is_seen() -> None:
    dispatcher = OxsDebugDispatcher({"aten::relu": lambda op, x: op.Neg(x)})
    convert_graph(_trace(), dispatcher)
    relu = dispatcher.report[1]
    assert isinstance(relu.ours, float)
    assert relu.ours > 1
    assert relu.torchlib == 0


def _compare(function: Callable[..., Any], *args: torch.Tensor) -> list[Comparison]:
    dispatcher = OxsDebugDispatcher()
    for mode in ("fake", "symbolic"):
        convert_graph(make_fx(function, tracing_mode=mode)(*args), dispatcher)
    return dispatcher.report


def test_each_result_of_an_operator_is_compared() -> None:
    report = _compare(lambda x: torch.ops.aten.native_layer_norm(x, [3], None, None, 0.1), X)
    assert [c.op for c in report] == ["aten::native_layer_norm"] * 2
    assert all(isinstance(c.ours, float) and c.ours < 1e-6 for c in report)
    assert all(isinstance(c.torchlib, float) and c.torchlib < 1e-6 for c in report)


def test_sizes_that_are_symbols_take_their_example() -> None:
    report = _compare(lambda x: x.reshape(x.shape[0] * 3) * 2, X)
    assert {"aten::mul.Tensor", "_operator::mul"} <= {c.op for c in report}
    assert all(c.ours == 0 and c.torchlib == 0 for c in report)


def test_inputs_that_torch_refuses_are_reported() -> None:
    place = torch.zeros(40, dtype=torch.int64)
    report = _compare(lambda x, i: x.index_select(0, i), torch.zeros(1, 3), place)
    assert "torch refuses the made-up inputs" in str(report[0].ours)


def test_plain_dispatcher_has_no_torchlib() -> None:
    node = next(n for n in _trace().graph.nodes if n.op == "call_function")
    assert Dispatcher(own_converters=False).refusal(node) == "no converter"
