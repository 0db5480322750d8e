"""dump_applied_patterns: every application as two models that compute the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

from dort_rewriter.errors import OptimizeError
from dort_rewriter.optimize.patterns.base import Match, Rule
from dort_rewriter.optimize.pipeline import optimize
from dort_rewriter.optimize.view import GraphView
from dort_rewriter.options import OptimizationOptions
from dort_rewriter.runtime.kernel_query import kernel_query
from tests.optimize.rewrites import model_of, random_inputs


class TwoResults(Rule):
    """``a = Neg(x), y = Abs(a) -> Sub(0, x), Abs(x)``: both replaced, a constant is read."""

    roots = ("Abs",)

    def match(self, node: ir.Node, graph: GraphView) -> Match | None:
        above = graph.producer(node.inputs[0], "Neg")
        if above is None:
            return None
        x = above.inputs[0]
        replaced = [above.outputs[0], node.outputs[0]]
        return Match(replaced, lambda op: (op.Sub(0.0, x), op.Abs(x)))


def _dump(model: ir.Model, folder: Path, patterns: object = "default") -> list[str]:
    options = OptimizationOptions(patterns=patterns, dump_applied_patterns=str(folder))
    optimize(model, options, has_kernel=kernel_query())
    return sorted(path.name for path in folder.iterdir())


def _assert_same(folder: Path, stem: str) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    before, after = (onnx.load(folder / f"{stem}_{kind}.onnx") for kind in ("before", "after"))
    for model in (before, after):
        onnx.checker.check_model(model, full_check=True)
    assert [o.name for o in before.graph.output] == [o.name for o in after.graph.output]
    feeds = {**random_inputs(after), **random_inputs(before)}
    results = []
    for model in (before, after):
        read = {i.name for i in model.graph.input}
        given = {name: array for name, array in feeds.items() if name in read}
        results.append(ReferenceEvaluator(model).run(None, given))
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)
    return before, after


def test_an_application_is_two_models(tmp_path: Path) -> None:
    """Only what it touches, with the provenance of the new node."""
    model = model_of("""(float16[N] x) => (double[N] y) {
        a = Cast<to=1>(x)
        b = Cast<to=11>(a)
        y = Exp(b)
    }""")
    names = _dump(model, tmp_path)
    assert names == ["0000_CastCast_after.onnx", "0000_CastCast_before.onnx"]
    before, after = _assert_same(tmp_path, "0000_CastCast")
    assert [n.op_type for n in before.graph.node] == ["Cast", "Cast"]
    assert [n.op_type for n in after.graph.node] == ["Cast"]
    assert {p.key: p.value for p in after.graph.node[0].metadata_props}["rule"] == "CastCast"


def test_several_results_and_constants(tmp_path: Path) -> None:
    """A result that is saved and read is an output of both."""
    model = model_of("""(float[N] x) => (float[N] a, float[N] z) {
        a = Neg(x)
        y = Abs(a)
        z = Exp(y)
    }""")
    _dump(model, tmp_path, [TwoResults])
    before, after = _assert_same(tmp_path, "0000_TwoResults")
    assert [o.name for o in before.graph.output] == ["a", "y"]
    assert [n.op_type for n in after.graph.node] == ["Sub", "Abs"]
    assert len(after.graph.initializer) == 1


def test_a_result_that_was_there_becomes_an_identity(tmp_path: Path) -> None:
    """A graph without nodes would return nothing."""
    model = model_of("""(float[N] x) => (float[N] y) {
        a = Identity(x)
        y = Exp(a)
    }""")
    _dump(model, tmp_path)
    _, after = _assert_same(tmp_path, "0000_Identity")
    assert [n.op_type for n in after.graph.node] == ["Identity"]


def test_numbers_go_on(tmp_path: Path) -> None:
    """A second model writes into the same folder without a loss."""
    text = "(float16[N] x) => (double[N] y) {a = Cast<to=1>(x) y = Cast<to=11>(a)}"
    _dump(model_of(text), tmp_path)
    assert "0001_CastCast_before.onnx" in _dump(model_of(text), tmp_path)
    assert len(list(tmp_path.iterdir())) == 4


def test_what_is_no_folder_is_an_error(tmp_path: Path) -> None:
    """Before anything is changed."""
    (tmp_path / "file").write_text("")
    with pytest.raises(OptimizeError, match="dump_applied_patterns"):
        _dump(model_of("(float[N] x) => (float[N] y) {y = Exp(x)}"), tmp_path / "file")
