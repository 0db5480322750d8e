"""optimize_onnx: models from anywhere, and what to_onnx says it optimized."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
import torch

from dort_rewriter import OptimizeError, OptionError, optimize_onnx, to_onnx

HEADER = '<ir_version: 8, opset_import: ["": 18, "local": 1]>'


def _parse(text: str) -> onnx.ModelProto:
    model = onnx.parser.parse_model(f"{HEADER} {text}")
    onnx.checker.check_model(model)
    return model


def _run(model: onnx.ModelProto | str, **feeds: Any) -> list[Any]:
    source = model if isinstance(model, str) else model.SerializeToString()
    session = onnxruntime.InferenceSession(source, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


def _operators(model: onnx.ModelProto) -> list[str]:
    return [n.op_type for n in model.graph.node]


HALF = """g (float[N] x) => (float[N] y) {
    a = Identity(x)
    two = Constant<value_float = 2.0>()
    y = Div(a, two)
}"""
X = np.array([1.0, -2.0, 3.0], dtype=np.float32)


def test_constants_may_be_nodes() -> None:
    """A model from elsewhere; what was given is not changed."""
    model = _parse(HALF)
    optimized, report = optimize_onnx(model, return_optimize_report=True)
    assert _operators(optimized) == ["Mul"]
    assert _operators(model) == ["Identity", "Constant", "Div"]
    assert {n: r.matches for n, r in report.rules.items() if r.matches} == {
        "Identity": 1,
        "DivToMul": 1,
    }
    np.testing.assert_array_equal(_run(optimized, x=X)[0], X / 2)


@pytest.mark.parametrize("kind", [str, Path])
def test_a_file(kind: Any, tmp_path: Path) -> None:
    """By its name."""
    onnx.save(_parse(HALF), tmp_path / "model.onnx")
    assert _operators(optimize_onnx(kind(tmp_path / "model.onnx"))) == ["Mul"]


def test_what_is_no_model_is_an_error(tmp_path: Path) -> None:
    """With the name of the file."""
    bad = tmp_path / "bad.onnx"
    bad.write_bytes(b"\x99 this is no model")
    with pytest.raises(OptimizeError, match=r"bad\.onnx.*is no ONNX model"):
        optimize_onnx(bad)
    with pytest.raises(OptimizeError, match=r"absent\.onnx.*cannot be read"):
        optimize_onnx(tmp_path / "absent.onnx")


def test_a_wrong_option_is_an_error() -> None:
    """An unknown processor."""
    with pytest.raises(OptionError, match="'ABACUS'"):
        optimize_onnx(_parse(HALF), {"processor": "ABACUS"})


def test_the_processor_is_asked_for_its_kernels() -> None:
    """A provider that is not there has none; rules that need no kernel apply."""
    gelu = """g (float[4] x) => (float[4] y) <float h = {0.5}, float o = {1.0},
    float r = {0.70710677}> {
        i = Identity(x) m = Mul(i, h) a = Mul(x, r) f = Erf(a) p = Add(f, o) y = Mul(m, p) }"""
    selection = "default+onnxruntime"
    here = optimize_onnx(_parse(gelu), {"patterns": selection, "processor": "CPU"})
    assert _operators(here) == ["Gelu"]
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        there = optimize_onnx(_parse(gelu), {"patterns": selection, "processor": "CUDA"})
        assert _operators(there) == ["Mul", "Mul", "Erf", "Add", "Mul"]


def test_subgraphs_read_what_is_rewritten() -> None:
    """Names of the outer graph that a branch reads."""
    model = _parse("""g (float[N] x, bool c) => (float[N] y) {
        a = Identity(x)
        two = Constant<value_float = 2.0>()
        b = Div(a, two)
        y = If (c) <
            then_branch = yes () => (float[N] t) { t = Mul(b, two) },
            else_branch = no () => (float[N] e) { e = Sub(a, b) }
        >
    }""")
    optimized = optimize_onnx(model)
    onnx.checker.check_model(optimized)
    assert _operators(optimized) == ["Mul", "If"]
    for c in (True, False):
        feeds = {"x": X, "c": np.array(c)}
        np.testing.assert_array_equal(_run(optimized, **feeds)[0], _run(model, **feeds)[0])


def test_functions_stay() -> None:
    """Of the model, called where they were."""
    model = _parse("""g (float[N] x) => (float[N] y) {
        a = Identity(x)
        b = local.twice(a)
        y = Identity(b)
    }
    <domain: "local", opset_import: ["": 18]>
    twice (v) => (w) { w = Add(v, v) }""")
    optimized = optimize_onnx(model)
    assert _operators(optimized) == ["twice"]
    assert [f.name for f in optimized.functions] == ["twice"]
    np.testing.assert_array_equal(_run(optimized, x=X)[0], X + X)


def test_an_initializer_that_is_an_input_may_change() -> None:
    """Its value is a default: nothing is computed with it."""
    model = _parse("""g (float[N] x, float two) => (float[N] y) <float two = {2.0}> {
        y = Div(x, two)
    }""")
    optimized = optimize_onnx(model)
    assert _operators(optimized) == ["Div"]
    three = np.array(3, dtype=np.float32)
    np.testing.assert_allclose(_run(optimized, x=X, two=three)[0], X / three)


def test_weights_in_a_file_of_their_own(tmp_path: Path) -> None:
    """The result does not depend on where it is used, or on the file."""
    weight = np.arange(5000, dtype=np.float32)
    model = _parse("g (float[M] x, float[M] w) => (float[M] y) {a = Identity(x) y = Mul(a, w)}")
    del model.graph.input[1]
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    path = tmp_path / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, location="w.data", size_threshold=1024)
    assert (tmp_path / "w.data").stat().st_size >= weight.nbytes
    optimized = optimize_onnx(path)
    (tmp_path / "w.data").unlink()
    x = np.ones(5000, dtype=np.float32)
    np.testing.assert_array_equal(_run(optimized, x=x)[0], weight)


def test_to_onnx_returns_its_report() -> None:
    """Alone, or after the builder."""
    model, args = torch.nn.Linear(3, 2), (torch.randn(4, 3),)
    proto, report = to_onnx(model, args, return_optimize_report=True)
    assert report.nodes_after == len(proto.graph.node)
    _, exported, again = to_onnx(model, args, return_builder=True, return_optimize_report=True)
    assert again.nodes_after == len(exported.model.graph)
    assert isinstance(to_onnx(model, args), onnx.ModelProto)
