"""A set applied twice changes nothing: on the graphs of the benchmarks, whatever passes leave."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest

from dort_rewriter.backends.optimize_onnx import optimize_model
from dort_rewriter.compiler.building import export_block
from dort_rewriter.export.oxs_dispatcher import OxsDispatcher
from dort_rewriter.optimize.patterns.base import GraphPass
from dort_rewriter.optimize.view import GraphView
from dort_rewriter.options import OptimizationOptions, OrtBackendOptions
from dort_rewriter.plan.graph_plan import plan_whole
from dort_rewriter.plan.random_order import hoist_random
from dort_rewriter.plan.recipe import Recipe
from dort_rewriter.runtime.providers import CPU
from tests.optimize.rewrites import model_of

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
SETS = ("default", "default+onnxruntime", "default+onnxruntime+experimental")
MODELS = ("mlp", "cnn", "llama", "gpt2", "bert", "vit")


def applied_again(model: ir.Model, patterns: Any) -> dict[str, int]:
    """What a set does to a model that it was applied to, read from a file."""
    stored = ir.from_proto(ir.to_proto(model))
    report = optimize_model(stored, OptimizationOptions(patterns=patterns))
    return {rule.name: rule.matches for rule in report.rules.values() if rule.matches}


def graphs_of(name: str, dynamic: bool) -> Sequence[Any]:
    """The forward and backward graphs of a training step, and the one of inference."""
    from bench_graphs import MODELS as FACTORIES  # type: ignore[import-not-found]
    from bench_graphs import capture

    assert set(FACTORIES) == set(MODELS)
    graphs = [
        captured
        for training in (True, False)
        for captured in capture(name, FACTORIES[name], dynamic=dynamic, training=training)
    ]
    assert len(graphs) == 3
    return graphs


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", MODELS)
def test_graphs_of_the_benchmarks(
    name: str, dynamic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the backend exports them, all in ONNX Runtime."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    for captured in graphs_of(name, dynamic):
        for patterns in SETS:
            recipe = Recipe(
                dispatcher=OxsDispatcher(),
                options=OrtBackendOptions(
                    optimization=OptimizationOptions(patterns=patterns),
                    placement={"*": "onnxruntime"},
                ),
                select_providers=lambda graph, args: [(CPU, {})],
            )
            graph = captured.copy()
            hoist_random(graph)
            model = export_block(plan_whole(graph, recipe), CPU).exported.model
            assert applied_again(model, patterns) == {}, (captured.name, patterns)


class MaxOfOne(GraphPass):
    """``Max(x, Neg(y)) -> Max(x, x)``   and the Neg stays where it is."""

    def run(self, graph: GraphView) -> int:
        changed = 0
        for node in graph.graph:
            if node.op_type == "Max" and graph.producer(node.inputs[1], "Neg") is not None:
                node.replace_input_with(1, node.inputs[0])
                changed += 1
        return changed


def test_what_a_pass_leaves_unread_is_gone_before_leaves_are_ordered() -> None:
    """A node that only such a node read is a leaf itself."""
    model = model_of(
        """(float[4] x) => (float[4] a, float[4] c) {
            h = Exp(x) a = Cos(h) n = Neg(a) b = Max(h, n) c = Sin(b) }"""
    )
    patterns = [MaxOfOne(), "LeavesLast"]
    optimize_model(model, OptimizationOptions(patterns=patterns))
    assert sorted(n.op_type for n in model.graph) == ["Cos", "Exp", "Max", "Sin"]
    assert applied_again(model, patterns) == {}
