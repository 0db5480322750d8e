"""Equal nodes of a graph become one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from dort_rewriter.capture.duplicates import merge_duplicates

aten = torch.ops.aten


def _merge(function: Callable[..., Any], *args: torch.Tensor) -> tuple[int, torch.fx.GraphModule]:
    graph_module = make_fx(function)(*args)
    merged = merge_duplicates(graph_module.graph)
    graph_module.graph.lint()
    graph_module.recompile()
    expected, got = function(*args), graph_module(*args)
    torch.testing.assert_close(got, expected)
    return merged, graph_module


def test_equal_nodes_are_merged() -> None:
    """Also what is equal only after its arguments are."""
    merged, _ = _merge(lambda x: (x.sin().cos() + x.sin().cos(),), torch.randn(3))
    assert merged == 2


def test_numbers_of_different_types_are_different() -> None:
    """1, 1.0 and True promote differently; -0.0 is not 0.0."""
    x = torch.ones(3, dtype=torch.int64)
    assert _merge(lambda x: ((x * 1).double() + x * 1.0,), x)[0] == 0
    y = torch.randn(3)
    assert _merge(lambda y: ((y * 0.0).reciprocal(), (y * -0.0).reciprocal()), y)[0] == 0


def test_what_is_returned_stays() -> None:
    """Two results are two tensors."""
    assert _merge(lambda x: (x.sin(), x.sin()), torch.randn(3))[0] == 0


def test_random_and_uninitialized_tensors_stay() -> None:
    """Two draws are two draws."""

    def function(x: torch.Tensor) -> Any:
        a, b = torch.rand_like(x), torch.rand_like(x)
        return ((a - b).abs().sum() > 0,)

    assert _merge(function, torch.randn(8))[0] == 0


def test_a_write_comes_between() -> None:
    """The second reading finds other numbers."""

    def function(x: torch.Tensor) -> Any:
        y = x.clone()
        a = aten.sin(y)
        y.add_(1)
        return (a + aten.sin(y),)

    assert _merge(function, torch.randn(3))[0] == 0
