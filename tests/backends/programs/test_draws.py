"""Random numbers of computed tensors: drawn inside a session, where it would be cut."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from dort_rewriter import OrtBackend, OrtBackendOptions
from dort_rewriter.capture import tracing

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


def both(
    compiled: Callable[..., Any],
    function: Callable[..., Any],
    given: Tensor,
    given_eager: Tensor | None = None,
    seed: int = 0,
) -> tuple[Any, Any]:
    """The numbers of a compiled function, which are eager mode's, and those: its generator too."""
    torch.manual_seed(seed)
    expected, state = (
        function(given if given_eager is None else given_eager),
        torch.get_rng_state(),
    )
    torch.manual_seed(seed)
    got = compiled(given)
    assert torch.equal(torch.get_rng_state(), state)
    torch.testing.assert_close(got, expected)
    return got, expected


def compare(
    compiled: Callable[..., Any],
    function: Callable[..., Any],
    seed: int,
    given: Tensor | None = None,
) -> None:
    """The numbers and gradients of eager mode, and its generator behind them."""
    x = (torch.randn(3, 8) if given is None else given).requires_grad_()
    y = x.detach().clone().requires_grad_()
    got, expected = both(compiled, function, y, x, seed=seed)
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


LAYOUTS: dict[str, Callable[[], Tensor]] = {
    "transposed": lambda: torch.randn(7, 6).t(),
    "swapped": lambda: torch.randn(4, 6, 8).transpose(0, 1),
    "channels last": lambda: torch.randn(2, 6, 4, 4).to(memory_format=torch.channels_last),
    "sliced": lambda: torch.randn(9, 8).t()[:, ::2],
    "expanded": lambda: torch.randn(1, 6, 5).transpose(1, 2).expand(3, 5, 6),
}
DRAWS: dict[str, Callable[[Tensor], Tensor]] = {
    "dropout": lambda x: F.dropout(x, 0.5),
    "alpha_dropout": lambda x: F.alpha_dropout(x, 0.5, training=True),
    "coins": lambda x: x * torch.empty_like(x).bernoulli_(0.5),
    "bernoulli": lambda x: torch.bernoulli(x.sigmoid()) * x,
    "bernoulli_": lambda x: torch.empty_like(x).bernoulli_(x.sigmoid()) * x,
    "rand_like": lambda x: torch.rand_like(x) * x,
    "randn_like": lambda x: torch.randn_like(x) * x,
    "randint_like": lambda x: torch.randint_like(x, 9) * x,
    "normal": lambda x: torch.normal(x, x.abs() + 1),
    "normal from 0": lambda x: torch.normal(0.0, x.abs() + 1) * x,
    "uniform_": lambda x: torch.empty_like(x).uniform_() * x,
    "gamma": lambda x: torch._standard_gamma(x.abs() + 1) * x,
    "normal_": lambda x: torch.empty_like(x).normal_() * x,
    "exponential_": lambda x: torch.empty_like(x).exponential_() * x,
    "geometric_": lambda x: torch.empty_like(x).geometric_(0.3) * x,
    "log_normal_": lambda x: torch.empty_like(x).log_normal_() * x,
    "poisson": lambda x: torch.poisson(x.abs()) * x,
    "gumbel": lambda x: F.gumbel_softmax(x, dim=1),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", DRAWS)
def test_draws_follow_the_memory_of_what_they_are_drawn_for(
    name: str, layout: str, dynamic: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Of an argument, and of what is computed: it may lie in another order in a session."""
    for change in (lambda x: x, lambda x: (x * 2).sin(), lambda x: (x * 2).sin()[1:, ::2]):

        def function(x: Tensor, change: Callable[[Tensor], Tensor] = change) -> Tensor:
            return DRAWS[name](change(x)) + 1

        compiled = torch.compile(function, backend=OrtBackend(), dynamic=dynamic)
        got, expected = both(compiled, function, LAYOUTS[layout]())
        assert got.stride() == expected.stride()
    assert "from now on" not in caplog.text


IN_A_ROW: dict[str, Callable[[Tensor], Any]] = {
    "for the sizes of a draw": lambda x: torch.randn_like(torch.poisson(x.abs())) * x,
    "new memory like a draw": lambda x: torch.empty_like(F.dropout(x.sin(), 0.5)).bernoulli_(0.5),
    "a draw of a draw": lambda x: torch.bernoulli(torch.rand_like(x * 2)) + torch.rand(3, 1),
    "two dropouts": lambda x: F.dropout(F.dropout(x.exp(), 0.5).sin(), 0.3) * torch.rand(8),
    "not read": lambda x: x * torch.rand_like(torch.rand_like(x) * x),
    "numbers written over": lambda x: torch.nan_to_num(x.mT * 2).normal_(),
    "powers": lambda x: torch.rand_like(3 ** (x.t() * 2).clamp(-3, 3)),
    "what a kernel lays out": lambda x: F.dropout(2 ** x.t(), 0.5),
    "a view of that": lambda x: F.dropout((2 ** x.t()).mT, 0.5),
    "like a view of that": lambda x: torch.empty_like((2 ** x.t()).mT).bernoulli_(0.5) * 2,
    "like numbers": lambda x: torch.rand_like((2 ** x.t()).mT) * 2,
    "as it lies": lambda x: torch.empty_like(x.t()).bernoulli_(0.7),
    "chosen of a part": lambda x: torch.multinomial((x.t() * 2).softmax(-1)[:, ::2], 1),
    "a part": lambda x: (torch.empty_like(x.t()).bernoulli_(0.7)[1:], x.sin()),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", IN_A_ROW)
def test_no_draw_is_left_out(name: str, dynamic: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Those after it would be others; and nothing falls back."""
    program = IN_A_ROW[name]
    compiled = torch.compile(program, backend=OrtBackend(), dynamic=dynamic)
    got, expected = both(compiled, program, torch.randn(3, 8))
    first, ours = (r[0] if isinstance(r, tuple) else r for r in (expected, got))
    assert first._is_view() == ours._is_view()
    assert "from now on" not in caplog.text


def test_draws_keep_their_order_in_a_block_beside_what_stays_in_torch() -> None:
    """One that reads nothing does not come before one that reads what is computed."""

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        part = x[::2]
        chosen = F.gumbel_softmax(x, dim=0)
        part.sigmoid_()
        part.scatter_(0, torch.zeros(1, dtype=torch.int64), 2.0)
        return chosen, torch.randperm(4)

    x = torch.randn(8)
    both(torch.compile(function, backend=OrtBackend()), function, x[::2], x.clone()[::2])


def test_draws_keep_their_order_in_blocks_around_what_stays_in_torch() -> None:
    """The first one is in the second block, where what follows it could be as well."""

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        first = torch.empty_like(x[:1]).exponential_()
        kept = F.dropout(x, 0.3).as_strided((2,), (1,))  # of a size that is no number
        return first, kept.sin() + torch.rand(2)

    compiled = torch.compile(function, backend=OrtBackend(), dynamic=True)
    both(compiled, function, torch.randn(6).exp())


@pytest.mark.parametrize("stays", [False, True])
def test_draws_of_blocks_and_of_torch_alternate(stays: bool) -> None:
    """Each one waits for those before it, wherever it runs."""

    def function(x: Tensor) -> list[Tensor]:
        found, read = [], x
        for _ in range(3):
            found.append(F.dropout(x.sin(), 0.5))
            place = x.as_strided((2,), (1,)) if stays else x[:2]
            read = F.dropout(place + torch.rand(2), 0.5)
            found += [read, torch.randperm(4)]
        return found

    compiled = torch.compile(function, backend=OrtBackend(), dynamic=True)
    both(compiled, function, torch.randn(6).exp())


def test_attention_that_drops_nothing_is_no_draw(caplog: pytest.LogCaptureFixture) -> None:
    """It may stand on either side of one, and keeps its results together."""

    def function(x: Tensor) -> Tensor:
        y = F.scaled_dot_product_attention(F.dropout(x, 0.5), x, x)
        return F.scaled_dot_product_attention(F.dropout(y.sin(), 0.5), y, y).cos()

    compiled = torch.compile(function, backend=OrtBackend())
    compare(compiled, function, 0, torch.randn(1, 2, 4, 8))
    assert "from now on" not in caplog.text


@torch.library.custom_op("test_draws::added", mutates_args=())
def _added(x: Tensor) -> Tensor:
    return x + torch.rand(x.shape)


@_added.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("test_draws::pair", mutates_args=())
def _pair(x: Tensor) -> tuple[Tensor, Tensor]:
    return x + torch.rand(x.shape), torch.randn(x.shape)


@_pair.register_fake
def _(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(x)


def _one(x: Tensor) -> tuple[Tensor, ...]:
    first = _added(x[:3])
    y = torch.tanh(x + x)
    return first, torch.randn_like(y) * y


def _two(x: Tensor) -> tuple[Tensor, ...]:
    first, second = _pair(x[:3])
    y = torch.tanh(x + x)
    last, _ = _pair(F.dropout(y, 0.5) + second.sum())
    return first, second.sin(), last, torch.randn_like(y) * y


@pytest.mark.parametrize("function", [_one, _two])
def test_operators_of_a_user_may_draw(
    function: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Wherever they are called: nobody knows what they do."""
    both(torch.compile(function, backend=OrtBackend()), function, torch.randn(5))
    assert "from now on" not in caplog.text


def test_nothing_is_dropped_of_what_has_no_elements() -> None:
    """It is returned itself, as a view if it is one, and no number is drawn for it."""

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        return F.dropout(x[:0].mT, 0.5), torch.rand(3)

    compiled = torch.compile(function, backend=OrtBackend())
    x = torch.randn(2, 3, 4, requires_grad=True)
    got, expected = both(compiled, function, x)
    assert got[0]._is_view()
    assert expected[0]._is_view()
    with pytest.raises(RuntimeError, match=r"in-?place"):
        got[0].add_(1)


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
def test_a_layer_of_torch_drops_what_it_drops_in_eager_mode(
    batch_first: bool, norm_first: bool
) -> None:
    """Its attention lies transposed."""
    layer = torch.nn.TransformerEncoderLayer(
        8, 2, 16, dropout=0.5, batch_first=batch_first, norm_first=norm_first
    )
    compare(torch.compile(layer, backend=OrtBackend()), layer, 0, torch.randn(3, 5, 8))


@pytest.mark.parametrize("dynamic", [False, True])
def test_dropout_of_a_device_whose_kernel_draws_and_multiplies(
    dynamic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As CUDA's does, whose masks are others than those of two kernels."""
    monkeypatch.setattr(tracing, "_has_a_kernel_for_both", lambda x: True)

    def function(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        y = F.dropout(F.dropout(x @ w, 0.3).relu(), 0.1)
        return y, F.dropout((x * 2).t(), 0.5) + torch.rand(1)

    backend = OrtBackend(OrtBackendOptions(fallback=False))
    compiled = torch.compile(function, backend=backend, dynamic=dynamic)
    for size in (4, 6):
        x, w = torch.randn(size, 8), torch.randn(8, 8, requires_grad=True)
        found = []
        for call in (function, compiled):
            torch.manual_seed(3)
            y, z = call(x, w)
            found.append([y, z, *torch.autograd.grad(y.square().sum(), w), torch.rand(2)])
        torch.testing.assert_close(found[1], found[0])


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
