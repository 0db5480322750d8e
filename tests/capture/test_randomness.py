from __future__ import annotations

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from dort_rewriter.capture.randomness import RANDOM_DECOMPOSITIONS, hoist_random

aten = torch.ops.aten


def _inputs_of_random(graph: torch.fx.GraphModule) -> list[list[str]]:
    return [
        [n.op for n in node.all_input_nodes]
        for node in graph.graph.nodes
        if node.op == "call_function" and torch.Tag.nondeterministic_seeded in node.target.tags
    ]


@pytest.mark.parametrize("like", [torch.rand_like, torch.randn_like])
def test_a_draw_depends_on_no_computed_tensor(like: object) -> None:
    graph = make_fx(lambda x: like(x.exp()) + x, tracing_mode="fake")(torch.zeros(2, 3))  # type: ignore[operator]
    x = torch.randn(2, 3)
    torch.manual_seed(1)
    expected = graph(x)
    hoist_random(graph)
    assert _inputs_of_random(graph) == [[]]
    torch.manual_seed(1)
    torch.testing.assert_close(graph(x), expected)


def test_dropout_draws_as_eager_does_on_the_cpu() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return aten.native_dropout.default(x.exp(), 0.3, True)

    x = torch.randn(4, 5)
    graph = make_fx(function, RANDOM_DECOMPOSITIONS, tracing_mode="fake")(x)
    hoist_random(graph)
    torch.manual_seed(1)
    expected = function(x)
    torch.manual_seed(1)
    torch.testing.assert_close(graph(x), expected)
    drawn = next(n for n in graph.graph.nodes if n.target is aten.bernoulli.p)
    assert drawn.args[0].target is aten.empty.memory_format


def test_a_symbolic_size_must_be_an_argument() -> None:
    graph = make_fx(lambda x: torch.rand_like(x + 1), tracing_mode="symbolic")(torch.zeros(2, 3))
    hoist_random(graph)
    assert [n.target for n in graph.graph.nodes if "rand" in n.name] == [aten.rand_like.default]
