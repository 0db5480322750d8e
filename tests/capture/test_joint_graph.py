"""A joint graph before it is cut: duplicates, copies, masks that are known."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from dort_rewriter.capture import joint_graph
from dort_rewriter.capture.joint_graph import drop_copies, merge_duplicates, name_known_masks

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


FLASH = aten._scaled_dot_product_flash_attention_for_cpu.default
FLASH_BACKWARD = aten._scaled_dot_product_flash_attention_for_cpu_backward.default

N = 6
Q, K, V = torch.randn(3, 2, 4, N, 8, generator=torch.Generator().manual_seed(0)).unbind()


def _causal(rows: int = N, columns: int = N, lowest: float = -math.inf) -> torch.Tensor:
    hidden = torch.ones(rows, columns, dtype=torch.bool).tril().logical_not()
    return torch.zeros(rows, columns).masked_fill(hidden, lowest)


def _named(function: Callable[..., Any], *args: Any, mode: str = "real") -> torch.fx.GraphModule:
    """The graph with its masks named, which computes what it did."""
    traced = make_fx(function, tracing_mode=mode)(*args)
    want = traced(*args)
    name_known_masks(traced.graph)
    traced.graph.lint()
    traced.recompile()
    torch.testing.assert_close(traced(*args), want, equal_nan=True)
    return traced


def _attention(traced: torch.fx.GraphModule) -> tuple[bool, bool]:
    """Whether the attention of a graph has a mask, and whether it is causal."""
    (told,) = _attentions(traced)
    return told


def _attentions(traced: torch.fx.GraphModule) -> list[tuple[bool, bool]]:
    return [
        (
            node.kwargs.get("attn_mask") is not None,
            bool(node.args[4] if len(node.args) > 4 else node.kwargs.get("is_causal", False)),
        )
        for node in traced.graph.nodes
        if node.target is FLASH
    ]


def _by(mask: Callable[[], torch.Tensor], *more: Any) -> Callable[..., Any]:
    return lambda q, k, v: FLASH(q, k, v, *more, attn_mask=mask())[0]


@pytest.mark.parametrize(
    "mask",
    [
        _causal,
        lambda: _causal(lowest=torch.finfo(torch.float32).min),
        lambda: _causal().expand(2, 1, N, N),
        lambda: _causal().expand(2, 4, N, N),
        lambda: _causal()[None, None],
        lambda: torch.where(torch.arange(N)[:, None] >= torch.arange(N), 0.0, -math.inf),
        lambda: torch.full((N, N), -math.inf).triu(1),
    ],
)
@pytest.mark.parametrize("more", [(), (0.0,), (0.0, False)])
def test_the_causal_mask(mask: Callable[[], torch.Tensor], more: Any) -> None:
    traced = _named(_by(mask, *more), Q, K, V)
    assert _attention(traced) == (False, True)
    calls = [n.target for n in traced.graph.nodes if n.op == "call_function"]
    assert calls == [FLASH, operator.getitem, operator.getitem]


def test_a_mask_that_hides_nothing_is_left_out() -> None:
    assert _attention(_named(_by(lambda: torch.zeros(2, 1, N, N)), Q, K, V)) == (False, False)


@pytest.mark.parametrize(
    "mask",
    [
        lambda: _causal().masked_fill(torch.eye(N, dtype=torch.bool), 0.5),  # a bias
        lambda: _causal(lowest=torch.finfo(torch.float16).min),  # of float32: hides not all
        lambda: _causal(lowest=-1e9),
        lambda: _causal().triu(-2) + torch.full((N, N), -math.inf).tril(-3),  # a window
        lambda: _causal().roll(1, 0),
        lambda: _causal().mT,
        lambda: torch.stack([_causal(), torch.zeros(N, N)])[:, None],  # not all of them
        lambda: torch.cat([_causal(), torch.full((1, N), math.nan)])[1:],
        lambda: torch.full((N, N), -math.inf),
    ],
)
def test_another_mask_stays(mask: Callable[[], torch.Tensor]) -> None:
    assert _attention(_named(_by(mask), Q, K, V)) == (True, False)


@pytest.mark.parametrize(("rows", "columns"), [(3, N), (N, 3), (1, N), (N, 1)])
def test_fewer_of_one_than_of_the_other(rows: int, columns: int) -> None:
    q, k, v = Q[:, :, :rows], K[:, :, :columns], V[:, :, :columns]
    traced = _named(_by(lambda: _causal(rows, columns)), q, k, v)
    with_mask, causal = _attention(traced)
    assert not (with_mask and causal)
    _named(_by(lambda: _causal(rows, columns).flip(0).flip(1)), q, k, v)


def test_a_mask_of_an_argument_stays() -> None:
    traced = _named(
        lambda q, k, v, m: FLASH(q, k, v, attn_mask=m + _causal())[0], Q, K, V, Q[0, 0] @ Q[0, 0].T
    )
    assert _attention(traced) == (True, False)


def test_a_mask_that_is_drawn_stays() -> None:
    traced = make_fx(_by(lambda: torch.rand(N, N)))(Q, K, V)
    name_known_masks(traced.graph)
    assert _attention(traced) == (True, False)


def test_a_mask_that_is_written_to_stays() -> None:
    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        mask = aten.zeros.default([N, N])
        aten.fill_.Scalar(mask, -1.0)
        return FLASH(q, k, v, attn_mask=mask)[0]

    assert _attention(_named(function, Q, K, V)) == (True, False)


def test_a_mask_of_symbolic_size_stays() -> None:
    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        n = q.shape[2]
        return FLASH(q, k, v, attn_mask=torch.full((n, n), -math.inf).triu(1))[0]

    assert _attention(_named(function, Q, K, V, mode="symbolic")) == (True, False)


def test_a_mask_that_is_too_large_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joint_graph, "_MOST", N * N - 1)
    assert _attention(_named(_by(_causal), Q, K, V)) == (True, False)


def test_what_is_read_elsewhere_stays() -> None:
    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        mask = _causal()
        first = FLASH(q, k, v, attn_mask=mask)[0]
        return FLASH(first, k, v, attn_mask=mask)[0], mask

    traced = _named(function, Q, K, V)
    assert _attentions(traced) == [(False, True)] * 2


def test_the_backward_is_told_as_well() -> None:
    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor) -> Any:
        mask = _causal()
        out, sums = FLASH(q, k, v, attn_mask=mask)
        return out, *FLASH_BACKWARD(g, q, k, v, out, sums, 0.0, False, attn_mask=mask)

    traced = _named(function, Q, K, V, torch.randn(2, 4, N, 8))
    (node,) = (n for n in traced.graph.nodes if n.target is FLASH_BACKWARD)
    assert node.kwargs.get("attn_mask") is None
    assert node.args[7] is True


def test_bfloat16() -> None:
    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        mask = _causal(lowest=torch.finfo(torch.bfloat16).min).bfloat16()
        return FLASH(q, k, v, attn_mask=mask)[0]

    traced = _named(function, Q.bfloat16(), K.bfloat16(), V.bfloat16())
    assert _attention(traced) == (False, True)
