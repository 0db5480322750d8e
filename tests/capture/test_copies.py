"""Copies that nobody can tell from what they copy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from dort_rewriter.capture.copies import drop_copies

aten = torch.ops.aten


def _drop(function: Callable[..., Any], *args: torch.Tensor) -> int:
    graph_module = make_fx(function, tracing_mode="fake")(*args)
    dropped = drop_copies(graph_module.graph)
    graph_module.graph.lint()
    graph_module.recompile()
    torch.testing.assert_close(graph_module(*args), function(*args))
    clones = [n for n in graph_module.graph.nodes if n.target is aten.clone.default]
    assert len(clones) + dropped == 1
    return dropped


def test_a_copy_within_a_graph_is_dropped() -> None:
    """Dropout of nothing."""
    assert _drop(lambda x: x.softmax(-1).clone() @ x, torch.randn(3, 3)) == 1


def test_a_copy_that_is_returned_stays() -> None:
    """Its source may be saved, and the caller may change it."""
    x = torch.randn(3, 3)
    assert _drop(lambda x: x.exp().clone(), x) == 0
    assert _drop(lambda x: x.exp().clone().t(), x) == 0


def test_a_source_that_is_returned_keeps_its_copy() -> None:
    """The caller may change it before the backward graph reads the copy."""

    def function(x: torch.Tensor) -> Any:
        y = x.exp()
        return y.view(-1), y.clone().sin()

    assert _drop(function, torch.randn(3, 3)) == 0


def test_copies_of_arguments_and_views_stay() -> None:
    """An argument is the caller's; a copy of a view may have another layout."""
    x = torch.randn(3, 3)
    assert _drop(lambda x: x.clone().sin(), x) == 0
    assert _drop(lambda x: x.exp().t().clone().sin(), x) == 0


def test_nothing_is_dropped_where_tensors_are_written() -> None:
    """A copy made before may differ from its source afterwards."""

    def function(x: torch.Tensor) -> Any:
        y = x.exp()
        z = y.clone()
        y.add_(1)
        return y.sin() + z.cos()

    assert _drop(function, torch.randn(3)) == 0
