"""Random numbers of computed tensors: drawn inside a session, where it would be cut."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from dort_rewriter import OrtBackend, OrtBackendOptions

Tensor = torch.Tensor


def gumbel(x: Tensor) -> Tensor:
    return F.gumbel_softmax((x * 2).relu() + x, tau=0.7)


def coins(x: Tensor) -> Tensor:
    p = (x * 2).sigmoid()
    return torch.bernoulli(p) * p.exp() + torch.rand_like(p) + torch.bernoulli(p)


def tokens(x: Tensor) -> tuple[Tensor, Tensor]:
    p = (x * 2).softmax(-1)
    chosen = torch.multinomial(p, 2)
    return p.gather(1, chosen).log().sum(-1), chosen


def slopes(x: Tensor) -> Tensor:
    return F.rrelu(x.sin() * 2, training=True).exp()


def many(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    a = F.dropout((x * 2).sin(), 0.3)
    b = torch.bernoulli(a.sigmoid())
    c = torch.randn_like(b) + torch.randint(0, 5, (3, 8))
    return a + b * c, torch.normal(a, b.abs() + 1), torch.randperm(5) + 1


def compare(compiled: Callable[..., Any], function: Callable[..., Any], seed: int) -> None:
    """The numbers and gradients of eager mode, and its generator behind them."""
    x = torch.randn(3, 8, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    torch.manual_seed(seed)
    expected, state = function(x), torch.get_rng_state()
    torch.manual_seed(seed)
    got = compiled(y)
    assert torch.equal(torch.get_rng_state(), state)
    torch.testing.assert_close(got, expected)
    first, ours = (r[0] if isinstance(r, tuple) else r for r in (expected, got))
    weights = torch.randn_like(first)
    first.backward(weights)
    ours.backward(weights)
    torch.testing.assert_close(y.grad, x.grad)


def sessions(backend: OrtBackend) -> list[int]:
    infos = backend._all_ort_execution_info.execution_info_per_graph_module
    return [len(i) for i in infos.values()]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", [gumbel, coins, tokens, slopes, many])
def test_draws_are_those_of_eager_mode(
    function: Callable[..., Any], dynamic: bool, caplog: pytest.LogCaptureFixture
) -> None:
    backend = OrtBackend()
    compiled = torch.compile(function, backend=backend, dynamic=dynamic)
    with caplog.at_level(logging.INFO, logger="dort_rewriter"):
        for seed in range(3):
            compare(compiled, function, seed)
    assert sessions(backend) == [1, 1]  # forward and backward
    assert "A session calls these operators in torch" in caplog.text
    assert "from now on" not in caplog.text


def test_draws_of_arguments_alone_stay_before_the_session(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def function(x: Tensor) -> Tensor:
        return F.dropout((x * 2).sin(), 0.3) + torch.rand(8) * x.exp()

    backend = OrtBackend()
    compiled = torch.compile(function, backend=backend)
    with caplog.at_level(logging.INFO, logger="dort_rewriter"):
        compare(compiled, function, 0)
    assert "A session calls" not in caplog.text


def test_a_verified_graph_is_cut() -> None:
    """What is computed again must see the same numbers."""
    compiled = torch.compile(coins, backend=OrtBackend(OrtBackendOptions(verify=True)))
    for seed in range(2):
        compare(compiled, coins, seed)


def test_each_call_draws_anew() -> None:
    compiled = torch.compile(coins, backend=OrtBackend())
    x = torch.randn(3, 8)
    assert not torch.equal(compiled(x), compiled(x))


def test_an_error_of_a_draw_reaches_the_caller() -> None:
    def function(x: Tensor) -> Tensor:
        return torch.bernoulli(x * 2).exp() * x.sin() + 1

    compiled = torch.compile(function, backend=OrtBackend())
    compiled(torch.rand(4) / 2)
    with pytest.raises(RuntimeError, match="p_in >= 0"):
        compiled(torch.full((4,), 3.0))
    compiled(torch.rand(4) / 2)
