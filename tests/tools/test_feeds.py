"""What models read, and one model's inputs given to another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx.reference import ReferenceEvaluator

from dort_rewriter import OptionError, build_matching_inputs, inputs_from_onnx_model
from tests.runtime.graphs import parse

LINEAR = """(float[N,3] x, float[3,2] w, int64[1] n) => (float[N,2] y)
<float[2] b = {1.0, -1.0}> { m = MatMul(x, w)
 y = Add(m, b) }"""
FROZEN = """(float[4,3] arg0) => (float[4,2] r)
<float[3,2] p = {0,0,0,0,0,0}, float[2] q = {1.0, -1.0}> { t = MatMul(arg0, p)
 r = Add(t, q) }"""


def plain(model: Any, **options: Any) -> list[tuple[Any, ...]]:
    return [tuple(i) for i in inputs_from_onnx_model(model, **options)]


def test_inputs_and_initializers() -> None:
    f, i = ir.DataType.FLOAT, ir.DataType.INT64
    inputs = [("INPUT", "x", f, ("N", 3)), ("INPUT", "w", f, (3, 2)), ("INPUT", "n", i, (1,))]
    assert plain(parse(LINEAR)) == inputs
    assert plain(parse(LINEAR), init=True) == [*inputs, ("INIT", "b", f, (2,))]
    assert str(inputs_from_onnx_model(parse(LINEAR))[0]) == "INPUT x: FLOAT['N', 3]"


@pytest.mark.parametrize("form", ["proto", "ir", "bytes", "path", "text"])
def test_a_model_in_any_form(form: str, tmp_path: Path) -> None:
    model = parse(LINEAR)
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    forms = {
        "proto": model,
        "ir": ir.from_proto(model),
        "bytes": model.SerializeToString(),
        "path": path,
        "text": str(path),
    }
    assert plain(forms[form]) == plain(model)


def test_initializers_among_the_inputs_are_initializers() -> None:
    model = parse("(float[N] x) => (float[N] y) <float[1] w = {2.0}> { y = Mul(x, w) }")
    model.graph.input.append(onnx.helper.make_tensor_value_info("w", 1, [1]))
    assert [i.name for i in inputs_from_onnx_model(model)] == ["x"]


def test_unknown_types_and_ranks_are_none() -> None:
    model = parse("(float[N] x) => (float[N] y) { y = Neg(x) }")
    model.graph.input[0].type.tensor_type.ClearField("shape")
    assert plain(model) == [("INPUT", "x", ir.DataType.FLOAT, None)]
    assert str(inputs_from_onnx_model(model)[0]) == "INPUT x: FLOAT"


@pytest.mark.parametrize("content", [b"", b"this is a text and no model"])
def test_what_is_no_model_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    with pytest.raises(OptionError, match=r"No ONNX model can be read from '.*m\.onnx'"):
        inputs_from_onnx_model(path)
    with pytest.raises(OptionError, match="No ONNX model can be read from the bytes"):
        inputs_from_onnx_model(content)


def test_a_missing_file_and_another_type_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"'.*none\.onnx': .*No such file"):
        inputs_from_onnx_model(tmp_path / "none.onnx")
    with pytest.raises(OptionError, match="not Tensor"):
        inputs_from_onnx_model(torch.zeros(1))


def test_an_input_of_one_is_an_initializer_of_the_other() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((4, 3)).astype(np.float32)
    frozen, linear = parse(FROZEN), parse(LINEAR.replace(", int64[1] n", ""))
    weight = rng.standard_normal((3, 2)).astype(np.float32)
    frozen.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(weight, "p"))
    feeds = build_matching_inputs(frozen, {"arg0": x}, linear)
    assert list(feeds) == ["x", "w"]
    expected = ReferenceEvaluator(frozen).run(None, {"arg0": x})[0]
    np.testing.assert_allclose(ReferenceEvaluator(linear).run(None, feeds)[0], expected, atol=1e-6)


def test_the_result_is_made_of_what_was_given() -> None:
    model = parse("(float[N] x) => (float[N] y) { y = Neg(x) }")
    other = parse("(float[N] z) => (float[N] y) { y = Neg(z) }")
    values = torch.tensor([1.0, 2.0])
    got = build_matching_inputs(model, {"x": values}, other)
    assert list(got) == ["z"]
    torch.testing.assert_close(got["z"], values)
    array = build_matching_inputs(model, {"x": values.numpy()}, other)["z"]
    assert isinstance(array, np.ndarray)


def two(first: str, second: str) -> onnx.ModelProto:
    return parse(
        f"(float[2] {first}, float[2] {second}) => (float[2] y) {{ y = Sub({first}, {second}) }}"
    )


def test_names_come_before_positions() -> None:
    values = {"a": np.float32([1, 2]), "b": np.float32([3, 4])}
    swapped = build_matching_inputs(two("a", "b"), values, two("b", "a"))
    np.testing.assert_array_equal(swapped["a"], values["a"])
    one_name = build_matching_inputs(two("a", "b"), values, two("c", "a"))
    np.testing.assert_array_equal(one_name["c"], values["b"])
    by_position = build_matching_inputs(two("a", "b"), values, two("c", "d"))
    np.testing.assert_array_equal(by_position["c"], values["a"])
    np.testing.assert_array_equal(by_position["d"], values["b"])


def test_too_many_counterparts_are_refused() -> None:
    values = {"a": np.float32([1, 2]), "b": np.float32([3, 4])}
    one = parse("(float[2] z) => (float[2] y) { y = Neg(z) }")
    with pytest.raises(OptionError, match=r"INPUT z: FLOAT\[2\].* 2 counterparts .*\(a, b\)"):
        build_matching_inputs(two("a", "b"), values, one)
    with pytest.raises(OptionError, match=r"0 counterparts .*\(none\)"):
        build_matching_inputs(one, {"z": np.zeros(2, np.float32)}, parse(LINEAR))


def test_a_weight_that_has_the_shape_of_an_input_is_no_counterpart_of_it() -> None:
    weight = "<float[4,4] w = {1,0,0,0,0,1,0,0,0,0,1,0,0,0,0,1}>"
    model = parse(f"(float[N,4] x) => (float[N,4] y) {weight} {{ y = MatMul(x, w) }}")
    other = parse(f"(float[N,4] z) => (float[N,4] y) {weight} {{ y = MatMul(z, w) }}")
    x = np.arange(20, dtype=np.float32).reshape(5, 4)
    got = build_matching_inputs(model, {"x": x}, other)
    assert list(got) == ["z"]
    np.testing.assert_array_equal(got["z"], x)


def test_nothing_stands_for_two_inputs() -> None:
    weight = "<float[4,4] w = {1,0,0,0,0,1,0,0,0,0,1,0,0,0,0,1}>"
    model = parse(f"(float[N,4] x) => (float[N,4] y) {weight} {{ y = MatMul(x, w) }}")
    other = parse("(float[N,4] a, float[M,4] b) => (float[N,M] y) { y = MatMul(a, b) }")
    x = np.arange(16, dtype=np.float32).reshape(4, 4)
    with pytest.raises(OptionError, match=r"INPUT b: .* rename the inputs"):
        build_matching_inputs(model, {"x": x}, other)


def test_feeds_must_be_those_of_the_first_model() -> None:
    model = two("a", "b")
    values = np.zeros(2, np.float32)
    with pytest.raises(OptionError, match=r"also reads \['b'\]"):
        build_matching_inputs(model, {"a": values}, model)
    with pytest.raises(OptionError, match=r"does not read \['c'\]"):
        build_matching_inputs(model, {"a": values, "b": values, "c": values}, model)
