"""The plan of a graph: who computes each node, by passes that run once, in order."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from dort_rewriter import OrtBackend, OrtBackendOptions, explain
from dort_rewriter.backends.onnxrt_graphs import make_recipe
from dort_rewriter.plan.graph_plan import DECIDE, PREPARE, GraphPlan, plan_graph
from dort_rewriter.plan.nodes import plan_of
from dort_rewriter.tools.cli import main


def program(x: torch.Tensor) -> torch.Tensor:
    drawn = torch.rand(3, 3)
    return torch.linalg.inv(x.exp() + drawn).relu() * 2


def planned(function: Any = program, **options: Any) -> GraphPlan:
    graph = make_fx(function, tracing_mode="fake")(torch.eye(3))
    return plan_graph(graph, make_recipe(OrtBackend(), OrtBackendOptions(**options)))


def test_each_node_has_who_computes_it_and_why() -> None:
    plan = planned()
    by = {node.op.partition(".")[0]: node.by for _, node in plan.nodes()}
    assert by["aten::rand"] == "torch"
    assert by["aten::linalg_inv_ex"] == "call"
    assert {by["aten::exp"], by["aten::relu"]} == {"session"}
    assert not plan.whole
    assert len(plan.blocks) == 1
    text = str(plan)
    assert "aten::linalg_inv_ex by call: no converter" in text
    assert text.endswith("1 session(s) on CPUExecutionProvider")


def test_what_is_placed_in_torch_cuts_the_graph() -> None:
    plan = planned(lambda x: (x.exp() + 1).relu().tanh(), placement={"aten::relu": "torch"})
    assert [f.op for f in plan.fallbacks] == ["aten::relu"]
    assert all(plan_of(n) is not None for b in plan.blocks.values() for n, _ in b.nodes())


def test_another_plan_has_a_node_called_in_torch() -> None:
    """The place of no other node is decided otherwise, and the graph stays as it was."""
    plan = planned(lambda x: (x.exp() + 1).relu().tanh() * 3)
    assert plan.whole
    nodes = [n.name for n in plan.graph_module.graph.nodes]
    changed = plan.without({"relu": "no kernel"})
    assert [(f.node, f.reason) for f in changed.called] == [("relu", "no kernel")]
    assert changed.whole
    assert not changed.fallbacks
    assert [n.name for n in plan.graph_module.graph.nodes] == nodes
    assert changed.without({"tanh": "none"}).recipe.refused == {
        "relu": "no kernel",
        "tanh": "none",
    }


def test_another_plan_leaves_a_node_to_torch() -> None:
    """Where too little is left for a session that could call it."""
    plan = planned(lambda x: x.exp().relu() * 3)
    changed = plan.without({"relu": "no kernel"})
    assert [(f.node, f.reason) for f in changed.fallbacks] == [("relu", "no kernel")]
    assert not changed.whole


def test_passes_run_once_in_their_order() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Dropout(0.5), torch.nn.ReLU())
    (graph,) = explain(model, torch.randn(2, 4)).graphs
    order = [p.name for p in (*PREPARE, *DECIDE)]
    for lowered in graph.lowered:
        names = [run.name for run in lowered.passes]
        assert max(Counter(names).values()) == 1
        assert "correct_metadata" in names
        decided = [n for n in names if n in order and n != "correct_metadata"]
        assert decided == [n for n in order if n in decided]


def test_passes_are_printed(capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    source = tmp_path / "model.py"
    source.write_text(
        "import torch\ndef make():\n    return torch.nn.Linear(3, 2), (torch.ones(1, 3),)\n"
    )
    assert main(["explain", f"{source}:make", "--passes"]) == 0
    printed = capsys.readouterr().out
    assert "graph 0, forward:" in printed
    for one in DECIDE:
        assert one.sentence in printed
