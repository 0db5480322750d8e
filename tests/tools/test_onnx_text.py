"""Models as text, in every form they come in."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import helper

from dort_rewriter import OptionError, plot_dot, pretty_onnx, to_onnx

MODEL = """<ir_version: 9, opset_import: ["": 18, "local": 1, "com.microsoft": 1]>
agraph (float[N,3] x, bool c, seq(float[2]) s, optional(int64[1]) o) => (float[N,M] y)
<float[1] one = {1.5}, int64[2,2] w = {1,2,3,4}, int64[12] big = {1,2,3,4,5,6,7,8,9,10,11,12}>
{
  t = Transpose<perm = [1, 0]>(x)
  k = Constant<value = float[2] {1.0, 0.1}>()
  q = Cast<to = 10>(t)
  e = Clip(x, , one)
  h = local.Gelu<alpha = 0.5>(e)
  f = com.microsoft.FusedMatMul<transA = 1>(h, h)
  y = If(c) <
    then_branch = g1 () => (float[N,M] z) { z = Neg(f) },
    else_branch = g2 () => (float[N,M] a) <float[1] l = {2.0}> { a = Add(f, l) }>
}
<domain: "local", opset_import: ["": 18]>
Gelu <alpha, beta: int = 2> (a) => (b) { r = LeakyRelu<alpha: float = @alpha>(a)
 b = Identity(r) }
"""

GRAPH = """\
input: name='x' type=float32 shape=['N', 3]
input: name='c' type=bool shape=[]
input: name='s' type=sequence(float32) shape=[2]
input: name='o' type=optional(int64) shape=[1]
init: name='one' type=float32 shape=(1,) -- array([1.5])
init: name='w' type=int64 shape=(2, 2) -- array([[1, 2], [3, 4]])
init: name='big' type=int64 shape=(12,)
Transpose(x, perm=[1, 0]) -> t
Constant(value=array([1. , 0.1])) -> k
Cast(t, to=FLOAT16) -> q
Clip(x, '', one) -> e
local.Gelu(e, alpha=0.5) -> h
com.microsoft.FusedMatMul(h, h, transA=1) -> f
If(c) -> y
  then_branch:
    Neg(f) -> z
    output: name='z' type=float32 shape=['N', 'M']
  else_branch:
    init: name='l' type=float32 shape=(1,) -- array([2.])
    Add(f, l) -> a
    output: name='a' type=float32 shape=['N', 'M']
output: name='y' type=float32 shape=['N', 'M']"""

FUNCTION = """\
function: name='Gelu' domain='local'
  opset: domain='' version=18
  input: name='a'
  attribute: name='alpha'
  attribute: name='beta' default=2
  LeakyRelu(a, alpha=@alpha) -> r
  Identity(r) -> b
  output: name='b'"""

OPSETS = "\n".join(
    f"opset: domain={domain!r} version={version}"
    for domain, version in (("", 18), ("com.microsoft", 1), ("local", 1))
)


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    return onnx.parser.parse_model(MODEL)


def test_a_model_in_any_form(model: onnx.ModelProto, tmp_path: Path) -> None:
    expected = f"{OPSETS}\n{GRAPH}\n{FUNCTION}"
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    for form in (model, ir.from_proto(model), model.SerializeToString(), path, str(path)):
        assert pretty_onnx(form) == expected


def test_parts_of_a_model(model: onnx.ModelProto, caplog: pytest.LogCaptureFixture) -> None:
    as_ir = ir.from_proto(model)
    with caplog.at_level(logging.WARNING):
        assert pretty_onnx(model.graph) == pretty_onnx(as_ir.graph) == GRAPH
        assert pretty_onnx(model.functions[0]) == FUNCTION
        assert pretty_onnx(next(iter(as_ir.functions.values()))) == FUNCTION
        assert pretty_onnx(model.graph.node[0]) == "Transpose(x, perm=[1, 0]) -> t"
        assert pretty_onnx(as_ir.graph.node(0)) == "Transpose(x, perm=[1, 0]) -> t"
        branches = pretty_onnx(model.graph.node[6])
        subgraph = pretty_onnx(model.graph.node[6].attribute[0].g)
    assert branches == GRAPH[GRAPH.index("If(") : GRAPH.rindex("\n")]
    assert subgraph == "Neg(f) -> z\noutput: name='z' type=float32 shape=['N', 'M']"
    assert pretty_onnx(model.graph.initializer[1]).startswith("tensor: name='w' type=int64")
    assert pretty_onnx(model.graph.node[0].attribute[0]) == "perm=[1, 0]"
    assert pretty_onnx(model.graph.input[0]) == "value: name='x' type=float32 shape=['N', 3]"
    assert caplog.records == []  # onnx_ir complains about names that nobody defines


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1, "1"),
        (0.1, "0.1"),
        ("text", "'text'"),
        ("x" * 70, f"'{'x' * 60}...'"),
        ([0.5, 2.0], "[0.5, 2]"),
        (["a", "b"], "['a', 'b']"),
        (list(range(12)), "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, ...]"),
        (onnx.numpy_helper.from_array(np.zeros((3, 4), np.float16)), "float16(3, 4)"),
        (onnx.numpy_helper.from_array(np.array(True)), "array(True)"),
    ],
)
def test_attributes(value: Any, text: str) -> None:
    node = helper.make_node("Op", ["x"], ["y"], name="n", domain="d", a=value)
    assert pretty_onnx(node) == f"d.Op(x, a={text}) -> y"


def test_element_types_have_names() -> None:
    node = helper.make_node("Random", [], ["y"], dtype=1, to=99)
    assert pretty_onnx(node) == "Random(dtype=FLOAT, to=99) -> y"


def test_unknown_types_and_shapes() -> None:
    graph = helper.make_graph(
        [helper.make_node("Split", ["x"], ["a", "", "b"])],
        "g",
        [onnx.ValueInfoProto(name="x"), helper.make_tensor_value_info("z", 16, [None, 1])],
        [helper.make_tensor_value_info("a", 8, None)],
    )
    assert pretty_onnx(graph).splitlines() == [
        "input: name='x' type=? shape=?",
        "input: name='z' type=bfloat16 shape=['?', 1]",
        "Split(x) -> a, '', b",
        "output: name='a' type=string shape=?",
    ]


def test_the_source_of_each_node_is_written_on_request() -> None:
    model = to_onnx(torch.nn.ReLU(), (torch.zeros(2),))
    assert "#" not in pretty_onnx(model)
    line = next(t for t in pretty_onnx(model, source=True).splitlines() if t.startswith("Relu"))
    assert " -> " in line
    assert "activation.py:" in line.partition("  # ")[2]


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(OptionError, match="not Tensor"):
        pretty_onnx(torch.zeros(1))


def test_a_model_without_the_file_of_its_weights() -> None:
    weight = onnx.TensorProto(name="w", data_type=1, dims=[2])
    weight.data_location = onnx.TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="none.bin")
    x, y = (helper.make_tensor_value_info(name, 1, [2]) for name in "xy")
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])], "g", [x], [y], [weight]
    )
    model = helper.make_model(graph)
    assert "init: name='w' type=float32 shape=(2,) -- array(?)" in pretty_onnx(model)
    assert "#1: ?" in plot_dot(model).dot
