from __future__ import annotations

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from dort_rewriter.aten import is_mutation
from dort_rewriter.errors import UnsupportedOp
from dort_rewriter.plan.partition import partition_graph


def refuse_tanh(node: torch.fx.Node) -> UnsupportedOp | None:
    if node.target is torch.ops.aten.tanh.default:
        return UnsupportedOp("aten::tanh", "a test", node=node.name)
    return None


def trace() -> torch.fx.GraphModule:
    return make_fx(lambda x: (x + 1).exp().tanh().neg() * 2, tracing_mode="fake")(torch.zeros(3))


def test_a_supported_graph_is_left_whole() -> None:
    graph = trace()
    partition = partition_graph(graph, lambda node: None, 1)
    assert partition.whole
    assert partition.graph_module is graph


def test_what_is_refused_cuts_the_graph() -> None:
    x = torch.randn(3)
    expected = trace()(x)
    partition = partition_graph(trace(), refuse_tanh, 1)
    assert len(partition.blocks) == 2
    assert [f.op for f in partition.fallbacks] == ["aten::tanh"]
    torch.testing.assert_close(partition.graph_module(x), expected)


def test_blocks_that_are_too_small_stay() -> None:
    partition = partition_graph(trace(), refuse_tanh, 3)
    assert partition.blocks == ()
    assert not partition.whole


def refuse_writes(node: torch.fx.Node) -> UnsupportedOp | None:
    return UnsupportedOp(str(node.target), "a test", node=node.name) if is_mutation(node) else None


def test_a_graph_that_reads_what_it_writes_is_not_cut() -> None:
    """A block would run before or after a write that stood on its other side."""

    def program(x: torch.Tensor) -> torch.Tensor:
        before = x.exp().sin()
        x.view(-1)[1:].mul_(2)
        return before + x.cos().tanh()

    x = torch.randn(2, 3)
    graph = make_fx(program, tracing_mode="fake")(x)
    expected = program(x.clone())
    partition = partition_graph(graph, refuse_writes, 1)
    assert partition.blocks == ()
    assert not partition.whole
    torch.testing.assert_close(partition.graph_module(x.clone()), expected)


def test_a_write_that_nobody_reads_cuts_the_graph() -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        y.add_(x.exp().sin())
        return x.cos().tanh()

    x, y = torch.randn(3), torch.randn(3)
    graph = make_fx(program, tracing_mode="fake")(x, y)
    partition = partition_graph(graph, refuse_writes, 1)
    assert partition.blocks
    mine, theirs = y.clone(), y.clone()
    torch.testing.assert_close(partition.graph_module(x, mine), program(x, theirs))
    torch.testing.assert_close(mine, theirs)
