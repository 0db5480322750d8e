"""Converters, rules and transforms of a program that raise, or return nonsense.

The results are torch's, one warning names the function; without the net, what it raised is seen.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import onnx_ir as ir
import pytest
import torch
from torch import nn

from dort_rewriter import (
    Dispatcher,
    OptimizationOptions,
    OrtBackend,
    onnx_custom_backend,
)
from dort_rewriter.errors import calling, given_function_of
from dort_rewriter.optimize.patterns.base import Match, Rule

X = torch.randn(4, 8)


@pytest.fixture
def model() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))


@pytest.fixture
def net(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spread the net that the test suite works without."""
    monkeypatch.delenv("DORT_STRICT")


def check(model: nn.Module, backend: Any, caplog: pytest.LogCaptureFixture) -> str:
    """Compile and call twice; return what the package warned of, once."""
    compiled = torch.compile(model, backend=backend)
    with caplog.at_level(logging.WARNING, logger="dort_rewriter"), torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(compiled(X), model(X))
    (said,) = [r.getMessage() for r in caplog.records if r.name.startswith("dort_rewriter")]
    return said


def raising(*_: Any) -> Any:
    raise ValueError("a function of the user fails")


def with_converter(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    dispatcher = Dispatcher({"aten::tanh": function})

    def backend(graph_module: torch.fx.GraphModule, args: Any) -> Any:
        return onnx_custom_backend(graph_module, args, dispatcher=dispatcher, **options)

    return backend


@pytest.mark.usefixtures("net")
@pytest.mark.parametrize(
    ("function", "said"),
    [
        (raising, "It was raised in the converter of aten::tanh ("),
        (lambda op: op.Tanh(op), "It was raised in the converter of aten::tanh ("),
        (lambda op, x: None, "its converter gave nothing"),
        (lambda op, x: "x", "its converter gave a str instead of a value"),
        (lambda op, x: {}, "its converter gave a dict instead of a value"),
        (lambda op, x: ir.Value(name="elsewhere"), "its converter gave a Value instead"),
        (lambda op, x: (op.Tanh(x), op.Tanh(x)), "its converter gave a tuple instead of a value"),
        (lambda op, x: op.NoSuchOperator(x), "NoSuchOperator is not in opset"),
        (lambda op, x: op.Transpose(x, perm=[1, 0]), "its converter gave the shape [8,4]"),
    ],
    ids="raises arguments None str dict foreign two unknown shape".split(),
)
def test_converters(
    function: Callable[..., Any], said: str, model: nn.Module, caplog: pytest.LogCaptureFixture
) -> None:
    assert said in check(model, with_converter(function, raise_exc=False), caplog)


def test_what_a_converter_raises_is_seen_without_the_net(model: nn.Module) -> None:
    compiled = torch.compile(model, backend=with_converter(raising))
    with pytest.raises(Exception, match="a function of the user fails"), torch.no_grad():
        compiled(X)


def test_nothing_for_a_result_that_is_returned(caplog: pytest.LogCaptureFixture) -> None:
    backend = with_converter(lambda op, x: None, raise_exc=False)
    assert "its converter gave nothing" in check(nn.Tanh(), backend, caplog)


def rule(match: Callable[..., Any]) -> OrtBackend:
    class OfTheUser(Rule):
        """``Tanh(x) -> ?``"""

        roots = ("Tanh",)

        def match(self, node: ir.Node, graph: Any) -> Any:
            return match(node)

    options = OptimizationOptions(patterns=[OfTheUser])
    return OrtBackend({"optimization": options, "cache": False})


def match(build: Callable[..., Any]) -> Callable[..., Any]:
    return lambda node: Match([node.outputs[0]], lambda op: build(op, node.inputs[0]))


@pytest.mark.usefixtures("net")
@pytest.mark.parametrize(
    ("function", "said"),
    [
        (raising, "a function of the user fails"),
        (lambda node: "x", "OfTheUser.match gave 'x', no Match or Refusal"),
        (lambda node: True, "OfTheUser.match gave True, no Match or Refusal"),
        (lambda node: Match(None, raising), "a function of the user fails"),  # type: ignore[arg-type]
        (match(raising), "a function of the user fails"),
        (match(lambda op, x: None), "OfTheUser builds None, no values of the graph"),
        (match(lambda op, x: "x"), "OfTheUser builds 'x', no values of the graph"),
        (match(lambda op, x: (op.Abs(x), op.Abs(x))), "OfTheUser builds 2 results"),
        (match(lambda op, x: op.NoSuchOperator(x)), "NoSuchOperator is not in opset"),
        (match(lambda op, x: op.Transpose(x, perm=[1, 0])), "OfTheUser turns [4,8] into [8,4]"),
    ],
    ids="raises str True replaces build None text two unknown shape".split(),
)
def test_rules(
    function: Callable[..., Any], said: str, model: nn.Module, caplog: pytest.LogCaptureFixture
) -> None:
    told = check(model, rule(function), caplog)
    assert said in told
    assert "the rule OfTheUser" in told
    assert "defect of dort_rewriter" not in told


def test_a_rule_that_breaks_the_graph_costs_its_session(
    model: nn.Module, caplog: pytest.LogCaptureFixture
) -> None:
    def breaks(node: ir.Node) -> None:
        assert node.graph is not None
        node.graph.remove(node)

    assert "cannot build a session" in check(model, rule(breaks), caplog)


def clear(proto: Any) -> None:
    proto.Clear()


def without_nodes(proto: Any) -> None:
    del proto.graph.node[:]


def other_inputs(proto: Any) -> None:
    proto.graph.input[0].name = "another"


def no_outputs(proto: Any) -> None:
    del proto.graph.output[:]


def _after(proto: Any, operator: str, name: str) -> None:
    """Change the result of the model by one more operator."""
    result = proto.graph.output[0]
    proto.graph.node[-1].output[0] = "before"
    added = proto.graph.node.add()
    added.op_type, added.input[:], added.output[:] = operator, ["before"], [name]
    result.type.tensor_type.ClearField("shape")


def other_outputs(proto: Any) -> None:
    _after(proto, "Identity", "another")
    proto.graph.output[0].name = "another"


def other_types(proto: Any) -> None:
    _after(proto, "Shape", proto.graph.output[0].name)
    proto.graph.output[0].type.tensor_type.elem_type = 7


def other_sizes(proto: Any) -> None:
    _after(proto, "ReduceSum", proto.graph.output[0].name)


def other_order(proto: Any) -> None:
    _after(proto, "Transpose", proto.graph.output[0].name)


def other_rank(proto: Any) -> None:
    _after(proto, "NonZero", proto.graph.output[0].name)
    proto.graph.output[0].type.tensor_type.elem_type = 7


@pytest.mark.usefixtures("net")
@pytest.mark.parametrize(
    "function",
    [
        clear,
        without_nodes,
        other_inputs,
        no_outputs,
        other_outputs,
        other_types,
        other_sizes,
        other_order,
        other_rank,
    ],
)
def test_transforms_that_spoil_the_model(
    function: Callable[[Any], None], model: nn.Module, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"pre_ort_model_transforms": (function,), "optimization": {"patterns": None}}
    said = check(model, OrtBackend(options), caplog)
    assert said.startswith("A graph runs in torch from now on: ")


@pytest.mark.usefixtures("net")
def test_a_transform_that_raises(model: nn.Module, caplog: pytest.LogCaptureFixture) -> None:
    backend = OrtBackend({"pre_ort_model_transforms": (raising,)})
    said = check(model, backend, caplog)
    assert "It was raised in a pre_ort_model_transform" in said


def test_what_a_transform_returns_is_not_read(model: nn.Module) -> None:
    backend = OrtBackend({"pre_ort_model_transforms": (lambda proto: "x",)})
    compiled = torch.compile(model, backend=backend)
    with torch.no_grad():
        torch.testing.assert_close(compiled(X), model(X))
    assert backend.execution_count == 1


def test_the_first_function_that_an_error_passes_is_the_one() -> None:
    with pytest.raises(KeyError) as info, calling("the outer", raising):  # noqa: SIM117
        with calling("the inner", len):
            raise KeyError
    assert given_function_of(info.value) == "the inner"
