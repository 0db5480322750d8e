"""A graph as data, and back: the same nodes, values, symbols, constants and shared memory."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from dort_rewriter.aten import lineage, results_of
from dort_rewriter.capture.graph_data import Description, describe_graph, restore_graph
from dort_rewriter.errors import CaptureError

F = torch.nn.functional


def _traced(function: Callable[..., Any], *args: Any, symbolic: bool = False) -> Any:
    traced = make_fx(function, tracing_mode="symbolic" if symbolic else "fake")(*args)
    placeholder = next(iter(traced.graph.nodes))
    return traced, placeholder.meta["val"].fake_mode


def _again(graph_module: torch.fx.GraphModule, mode: FakeTensorMode) -> torch.fx.GraphModule:
    return restore_graph(pickle.loads(pickle.dumps(describe_graph(graph_module))), mode)


def _value(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_value(v) for v in value]
    if not isinstance(value, torch.Tensor):
        return (type(value), str(value))
    sizes = (*value.shape, *value.stride(), value.storage_offset())
    return (value.dtype, value.device, [str(s) for s in sizes])


def _views(x: torch.Tensor, y: torch.Tensor) -> Any:
    z = x.t() @ y
    return z.t(), x[1:], x.view(-1)[2:5].as_strided((2,), (2,), 3), z.to(torch.int8), z.sum()


def _several(x: torch.Tensor, y: torch.Tensor) -> Any:
    values, places = x.sort(1)
    left, right = y.split([1, y.shape[1] - 1], 1)
    return values, places, left, right, torch.where(x > 0, x, float("inf"))


def _constants(x: torch.Tensor, y: torch.Tensor) -> Any:
    return x + torch.tensor([1.5, 2.0, 3.0, 4.0]), y * torch.tensor(True), torch.zeros(0) + 1


def _layers(x: torch.Tensor, y: torch.Tensor) -> Any:
    normed = F.layer_norm(x, (4,))
    return (
        F.softmax(normed, -1),
        F.pad(y, (1, 2)),
        y.to(torch.bfloat16),
        x[:, None].expand(3, 2, 4),
    )


@pytest.mark.parametrize("symbolic", [False, True], ids=["fixed", "symbolic"])
@pytest.mark.parametrize("function", [_views, _several, _constants, _layers])
def test_a_graph_comes_back(function: Callable[..., Any], symbolic: bool) -> None:
    args = torch.linspace(-1, 1, 12).reshape(3, 4), torch.linspace(-2, 1, 15).reshape(3, 5)
    traced, mode = _traced(function, *args, symbolic=symbolic)
    known = len(mode.shape_env.guards) if symbolic else 0
    restored = _again(traced, mode)
    assert not symbolic or len(mode.shape_env.guards) == known
    assert str(restored.graph) == str(traced.graph)
    for mine, theirs in zip(restored.graph.nodes, traced.graph.nodes, strict=True):
        assert _value(mine.meta.get("val")) == _value(theirs.meta.get("val")), mine
        assert mine.meta.get("stack_trace") == theirs.meta.get("stack_trace")
        assert [n.name for n in lineage(mine)] == [n.name for n in lineage(theirs)]
    for mine, theirs in zip(restored(*args), traced(*args), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0)


def test_sizes_are_those_of_who_restores() -> None:
    traced, mode = _traced(lambda x: (x.t() * x.shape[0],), torch.ones(3, 4), symbolic=True)
    value = results_of(_again(traced, mode).graph)[0].meta["val"]
    assert value.shape[1].node.shape_env is mode.shape_env
    assert value.fake_mode is mode


def test_symbols_that_are_not_there_are_refused() -> None:
    traced, _ = _traced(lambda x: (x.t(),), torch.ones(3, 4), symbolic=True)
    with pytest.raises(CaptureError, match="nothing here is of the size"):
        _again(traced, FakeTensorMode(shape_env=ShapeEnv()))


def _with_module(graph: torch.fx.Graph) -> Any:
    return graph.call_module("inner", (graph.placeholder("x"),))


def _with_function(graph: torch.fx.Graph) -> Any:
    return graph.call_function(_views, (graph.placeholder("x"),))


def _with_object(graph: torch.fx.Graph) -> Any:
    return graph.call_function(torch.ops.aten.relu.default, (...,))


def _with_large_constant(graph: torch.fx.Graph) -> Any:
    return graph.get_attr("big")


def _with_real_value(graph: torch.fx.Graph) -> Any:
    node = graph.placeholder("x")
    node.meta["val"] = torch.ones(2)
    return node


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (_with_module, "a node is a call_module"),
        (_with_function, "a node calls <function _views"),
        (_with_object, "an argument is a ellipsis"),
        (_with_large_constant, "big is a large constant"),
        (_with_real_value, "a value is a Tensor"),
    ],
)
def test_what_no_data_can_say_is_refused(build: Callable[..., Any], reason: str) -> None:
    holder, graph = torch.nn.Module(), torch.fx.Graph()
    holder.inner = torch.nn.ReLU()
    holder.register_buffer("big", torch.zeros(100_000))
    graph.output((build(graph),))
    with pytest.raises(CaptureError, match=reason):
        describe_graph(torch.fx.GraphModule(holder, graph))


def _conjugated(x: torch.Tensor) -> torch.Tensor:
    return torch.complex(x, x).conj().angle()


def _counted(x: torch.Tensor) -> torch.Tensor:
    return x.nonzero() + 1


@pytest.mark.parametrize(
    ("function", "reason"), [(_conjugated, "conjugated"), (_counted, "at run time only")]
)
def test_a_key_says_what_nobody_restores(function: Callable[..., Any], reason: str) -> None:
    texts = set()
    for _ in range(2):
        traced, _mode = _traced(function, torch.ones(3), symbolic=True)
        described = Description(restored=False)
        texts.add(str([described.node(n)[:5] for n in traced.graph.nodes]))
        with pytest.raises(CaptureError, match=reason):
            describe_graph(traced)
    assert len(texts) == 1
    assert "%0" in texts.pop()
