"""Graphs that are cut beside higher-order operators: their bodies are submodules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from dort_rewriter.errors import UnsupportedOp
from dort_rewriter.plan.partition import partition_graph


class Branches(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.exp() * 2
        z = torch.cond(y.sum() > 0, torch.sin, torch.cos, (y,))
        return z.relu() + y


def graph_of() -> torch.fx.GraphModule:
    module = torch.export.export(Branches(), (torch.randn(3),)).module()
    assert isinstance(module, torch.fx.GraphModule)
    return module


def refuse(*names: str) -> Callable[[torch.fx.Node], UnsupportedOp | None]:
    def refusal(node: torch.fx.Node) -> UnsupportedOp | None:
        refused = node.op == "call_function" and any(n in str(node.target) for n in names)
        return UnsupportedOp(node.name, "refused") if refused else None

    return refusal


@pytest.mark.parametrize("refused", [("cond",), ("relu",), ("cond", "exp"), ("exp", "add")])
def test_a_body_stays_with_what_calls_it(refused: tuple[str, ...]) -> None:
    graph = graph_of()
    before = str(graph.graph)
    partition = partition_graph(graph, refuse(*refused), 1)
    assert str(graph.graph) == before
    for sign in (-100.0, 1.0):
        x = torch.full((3,), sign)
        torch.testing.assert_close(partition.graph_module(x), Branches()(x))
    inside = "cond" not in refused
    for name in partition.blocks:
        block: Any = getattr(partition.graph_module, name)
        targets = [str(n.target) for n in block.graph.nodes]
        assert sum(t.startswith("body_") for t in targets) in (0, 2)
        assert ("cond" in targets) is any(t.startswith("body_") for t in targets)
        inside = inside and "cond" not in targets
    assert not inside
