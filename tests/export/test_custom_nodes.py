"""Nodes that a user spells: ``torch.onnx.ops``, functions of onnxscript, domains of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnxruntime
import onnxscript
import pytest
import torch
from onnxscript import opset18

from dort_rewriter import Dispatcher, OxsDispatcher, UnsupportedOpError, to_onnx

X = torch.tensor([[-1.0, 2.0], [0.5, -3.0]])
MINE = onnxscript.values.Opset("mine", 2)

has_symbolic = pytest.mark.skipif(
    torch.torch_version.TorchVersion(torch.__version__) < (2, 8),
    reason="torch.onnx.ops is new in 2.8",
)


class Call(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


def test_a_list_for_an_operator_of_sequences() -> None:
    own = Dispatcher({"aten::relu": lambda op, x: op.ConcatFromSequence([x], axis=0)})
    model = to_onnx(torch.nn.ReLU(), (X,), dispatcher=own)
    assert [n.op_type for n in model.graph.node] == ["SequenceConstruct", "ConcatFromSequence"]


@has_symbolic
def test_a_symbolic_node() -> None:
    def spell(x: torch.Tensor) -> torch.Tensor:
        return torch.onnx.ops.symbolic(
            "mine::Spread",
            (x, None, x * 2),
            {"width": 3, "scale": 0.5, "name": "left", "parts": [1, 2], "flags": ["a", "b"]},
            dtype=torch.float16,
            shape=(x.shape[0], 7),
            version=4,
            metadata_props={"made": "by hand"},
        )

    model = to_onnx(Call(spell), (X,), dynamic_shapes={"x": {0: "rows"}})
    node = model.graph.node[-1]
    assert (node.domain, node.op_type, len(node.input), node.input[1]) == ("mine", "Spread", 3, "")
    attributes = {a.name: onnxscript.ir.from_proto(a).value for a in node.attribute}
    assert attributes == {
        "width": 3,
        "scale": 0.5,
        "name": "left",
        "parts": (1, 2),
        "flags": ("a", "b"),
    }
    assert {p.key: p.value for p in node.metadata_props}["made"] == "by hand"
    assert {o.domain: o.version for o in model.opset_import} == {"": 18, "mine": 4}
    result = model.graph.output[0].type.tensor_type
    assert result.elem_type == 10
    assert [d.dim_param or d.dim_value for d in result.shape.dim] == ["rows", 7]


@has_symbolic
def test_a_symbolic_node_with_several_results() -> None:
    def spell(x: torch.Tensor) -> Any:
        return torch.onnx.ops.symbolic_multi_out(
            "mine::Both", (x,), dtypes=(torch.float32, torch.int64), shapes=((2,), (3, 1))
        )

    model = to_onnx(Call(spell), (X,))
    assert len(model.graph.node[0].output) == 2
    assert [o.type.tensor_type.elem_type for o in model.graph.output] == [1, 7]


@has_symbolic
def test_two_versions_of_a_domain() -> None:
    def spell(x: torch.Tensor) -> Any:
        how: dict[str, Any] = {"dtype": x.dtype, "shape": x.shape}
        first = torch.onnx.ops.symbolic("mine::A", (x,), version=1, **how)
        return torch.onnx.ops.symbolic("mine::B", (first,), version=2, **how)

    with pytest.raises(UnsupportedOpError, match="mine is at version 1 already, not 2"):
        to_onnx(Call(spell), (X,))


@has_symbolic
@pytest.mark.parametrize("name", ["Relu", "ai.onnx::Relu"])
@pytest.mark.parametrize("version", [None, 14, 20])
def test_a_node_of_the_standard_domain(name: str, version: int | None) -> None:
    def spell(x: torch.Tensor) -> Any:
        return torch.onnx.ops.symbolic(name, (x,), dtype=x.dtype, shape=x.shape, version=version)

    model = to_onnx(Call(spell), (X,))
    assert {o.domain: o.version for o in model.opset_import} == {"": 18}
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (got,) = session.run(None, {session.get_inputs()[0].name: X.numpy()})
    torch.testing.assert_close(torch.from_numpy(got), X.relu())


@has_symbolic
@pytest.mark.parametrize(
    ("name", "version", "reason"),
    [
        ("ReduceSum", 11, "ReduceSum of opset 11 is another than that of opset 18"),
        ("ai.onnx::ReduceSum", 11, "ReduceSum of opset 11 is another than that of opset 18"),
        ("Gelu", 20, "Gelu is not in opset 18"),
    ],
)
def test_a_version_that_the_model_has_not(name: str, version: int, reason: str) -> None:
    def spell(x: torch.Tensor) -> Any:
        return torch.onnx.ops.symbolic(name, (x,), dtype=x.dtype, shape=(), version=version)

    with pytest.raises(UnsupportedOpError, match=reason):
        to_onnx(Call(spell), (X,))


@has_symbolic
def test_the_version_of_a_domain_that_is_asked_for() -> None:
    def spell(x: torch.Tensor) -> Any:
        return torch.onnx.ops.symbolic("mine::A", (x,), dtype=x.dtype, shape=x.shape, version=1)

    model = to_onnx(Call(spell), (X,), target_opset={"mine": 1})
    assert {o.domain: o.version for o in model.opset_import} == {"": 18, "mine": 1}
    with pytest.raises(UnsupportedOpError, match="mine is at version 3 already, not 1"):
        to_onnx(Call(spell), (X,), target_opset={"mine": 3})
    squash = Dispatcher({"aten::relu": in_a_domain})
    with pytest.raises(UnsupportedOpError, match="mine is at version 3 already, not 2"):
        to_onnx(torch.nn.ReLU(), (X,), dispatcher=squash, target_opset={"mine": 3})


def test_a_converter_may_name_the_standard_domain() -> None:
    made = Dispatcher({"aten::relu": lambda op, x: op.call("Abs", x, domain="ai.onnx")})
    model = to_onnx(torch.nn.ReLU(), (X,), dispatcher=made)
    assert {o.domain: o.version for o in model.opset_import} == {"": 18}


@onnxscript.script()
def leaky(x, slope: float = 0.25):  # type: ignore[no-untyped-def]
    return opset18.Where(opset18.Less(x, 0.0), x * slope, x)


@onnxscript.script(default_opset=opset18)
def branches(x):  # type: ignore[no-untyped-def]
    total = opset18.ReduceSum(x, keepdims=0)
    if total > 0.0:
        y = opset18.Neg(x)
    else:
        y = opset18.Relu(x)
    return y


@onnxscript.script(default_opset=opset18)
def repeats(x):  # type: ignore[no-untyped-def]
    y = x
    n = opset18.Squeeze(opset18.Shape(x, start=0, end=1))
    for _ in range(n):
        y = y + x
    return y


@onnxscript.script(default_opset=opset18)
def repeats_thrice(x):  # type: ignore[no-untyped-def]
    y = x
    for _ in range(3):
        y = y + x
    return y


@pytest.mark.parametrize("make", [Dispatcher, OxsDispatcher])
@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (branches, r"compute both cases and choose by Where\(condition, a, b\)"),
        (repeats, "the number of repetitions of a loop is a number, not a tensor"),
    ],
)
def test_a_function_of_onnxscript_that_decides_by_tensors(
    make: type[Dispatcher], function: Any, reason: str
) -> None:
    with pytest.raises(UnsupportedOpError, match=reason):
        to_onnx(torch.nn.ReLU(), (X,), dispatcher=make({"aten::relu": function}))
    # A number of times that is known is no decision.
    model = to_onnx(torch.nn.ReLU(), (X,), dispatcher=make({"aten::relu": repeats_thrice}))
    assert [n.op_type for n in model.graph.node] == ["Add"] * 3


def _squash(x: Any) -> Any:
    return onnxscript.values.Op(MINE, "Squash")(opset18.Neg(x), width=3)


in_a_domain = onnxscript.values.TracedOnnxFunction(MINE, _squash)


@pytest.mark.parametrize("make", [Dispatcher, OxsDispatcher])
def test_a_function_of_onnxscript(make: type[Dispatcher]) -> None:
    model = to_onnx(torch.nn.ReLU(), (X,), dispatcher=make({"aten::relu": leaky}))
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (got,) = session.run(None, {session.get_inputs()[0].name: X.numpy()})
    torch.testing.assert_close(torch.from_numpy(got), torch.where(X < 0, X * 0.25, X))


def test_a_function_of_onnxscript_in_a_domain() -> None:
    model = to_onnx(torch.nn.ReLU(), (X,), dispatcher=Dispatcher({"aten::relu": in_a_domain}))
    assert [(n.domain, n.op_type) for n in model.graph.node] == [("", "Neg"), ("mine", "Squash")]
    assert {o.domain: o.version for o in model.opset_import} == {"": 18, "mine": 2}


def test_a_converter_writes_a_domain_of_its_own() -> None:
    def squash(op: Any, x: Any) -> Any:
        return op.call("Squash", op.Neg(x), domain="mine", width=3)

    model = to_onnx(torch.nn.ReLU(), (X,), dispatcher=Dispatcher({"aten::relu": squash}))
    assert [(n.domain, n.op_type) for n in model.graph.node] == [("", "Neg"), ("mine", "Squash")]
