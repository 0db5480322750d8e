from __future__ import annotations

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from dort_rewriter import Dispatcher, OxsDebugDispatcher
from dort_rewriter.export.interpreter import convert_graph


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


def test_plain_dispatcher_has_no_torchlib() -> None:
    node = next(n for n in _trace().graph.nodes if n.op == "call_function")
    assert Dispatcher(own_converters=False).refusal(node) == "no converter"
