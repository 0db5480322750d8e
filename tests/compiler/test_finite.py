"""``verify="finite"``: what made an infinity or NaN is named, forward and backward."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from dort_rewriter import NotFiniteError, OptionError, OrtBackendOptions
from tests.backends.ways import compile_strictly


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()


def checked(function: Any, **options: Any) -> Any:
    return compile_strictly(function, verify="finite", **options)[0]


def normalized(x: torch.Tensor) -> torch.Tensor:
    y = x.relu() + x.abs()
    total = y.sum(-1, keepdim=True)
    return (y / total).sqrt() + 1


def test_a_finite_call_is_as_it_was() -> None:
    x = torch.rand(3, 4, requires_grad=True)
    compiled = checked(normalized)
    result = compiled(x)
    torch.testing.assert_close(result, normalized(x))
    result.sum().backward()
    assert x.grad is not None


@pytest.mark.parametrize("training", [False, True])
def test_the_node_the_line_and_the_inputs_are_named(training: bool) -> None:
    """A quotient of zeros in one row, not what is computed of it."""
    x = torch.rand(3, 4)
    x[1] = 0
    compiled = checked(normalized)
    with torch.set_grad_enabled(training), pytest.raises(NotFiniteError) as caught:
        compiled(x.requires_grad_(training))
    text = str(caught.value)
    assert "aten::div.Tensor makes NaN of finite values at " in text
    assert "y / total" in caught.value.where
    assert "test_finite.py:" in caught.value.where
    assert "(float32[3, 1], 0 to " in text
    assert text.count(", 0 there") == 2
    assert caught.value.node.startswith("div")


def test_an_infinity_is_named_too() -> None:
    with pytest.raises(
        NotFiniteError, match=r"aten::exp makes an infinity of finite values.*, 200 there"
    ):
        checked(lambda x: torch.exp(x) * 2)(torch.tensor([1.0, 200.0]))


def test_gradients_are_looked_at() -> None:
    """The square root of zero is finite, its slope is not."""
    x = torch.tensor([0.0, 1.0], requires_grad=True)
    result = checked(lambda x: (x * 2).sqrt().sum())(x)
    with pytest.raises(NotFiniteError, match="of the backward graph") as caught:
        result.backward()
    assert "sqrt()" in caught.value.where


def test_the_origin_of_an_infinity_that_becomes_nan() -> None:
    def gap(x: torch.Tensor) -> torch.Tensor:
        y = torch.log(x)
        return y - y.amax()

    with pytest.raises(NotFiniteError) as caught:
        checked(gap)(torch.tensor([0.0, 0.0]))
    assert "torch.log(x)" in str(caught.value)
    assert "aten::sub.Tensor makes NaN of infinite values" in str(caught.value)


def test_arguments_are_named_as_the_program_names_them() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(2, 2)

        def forward(self, data: torch.Tensor) -> torch.Tensor:
            return self.inner(data)

    module = Scaled()
    compiled = checked(module)
    x = torch.ones(1, 2)
    compiled(x)
    with pytest.raises(
        NotFiniteError, match=r"The argument data of the forward graph has NaN already"
    ):
        compiled(x * torch.nan)
    with torch.no_grad():
        module.inner.weight[0, 0] = torch.nan
    with pytest.raises(NotFiniteError, match=r"The argument self\.inner\.weight of the"):
        compiled(x)
    with torch.no_grad():
        module.inner.weight[0, 0] = torch.inf
    for gradients in (True, False):
        with (
            torch.set_grad_enabled(gradients),
            pytest.raises(NotFiniteError, match=r"self\.inner\.weight .* has an infinity already"),
        ):
            compiled(x)


def test_infinities_of_the_program_are_left_alone() -> None:
    """A mask of minus infinity is what attention is made of, and may leave a graph."""

    def attention(q: torch.Tensor, mask: torch.Tensor) -> Any:
        scores = (q @ q.t()).masked_fill(mask, float("-inf"))
        return scores.softmax(-1) @ q, scores

    q, mask = torch.rand(3, 4), torch.ones(3, 3, dtype=torch.bool).triu(1)
    compiled = checked(attention)
    for _ in range(2):
        torch.testing.assert_close(compiled(q, mask), attention(q, mask))
    given = torch.where(mask, float("-inf"), 0.0)
    bias = checked(lambda q, m: (m + 1, (q @ q.t() + m).softmax(-1)))
    torch.testing.assert_close(bias(q, given)[1], (q @ q.t() + given).softmax(-1))
    with pytest.raises(NotFiniteError, match=r"aten::_?softmax"):
        compiled(q, torch.ones_like(mask))


@pytest.mark.parametrize("place", ["onnxruntime", "torch"])
def test_wherever_a_node_runs(place: str) -> None:
    compiled = checked(normalized, placement={"aten::div": place}, fallback=True)
    with torch.no_grad(), pytest.raises(NotFiniteError, match=r"aten::div"):
        compiled(torch.zeros(3, 4))


def test_random_numbers_are_those_of_the_call() -> None:
    def noisy(x: torch.Tensor) -> torch.Tensor:
        return torch.log(torch.rand_like(x) - x)

    compiled = checked(noisy, fallback=True)
    torch.manual_seed(0)
    with torch.no_grad(), pytest.raises(NotFiniteError, match=r"aten::log") as caught:
        compiled(torch.full((64,), 0.999))
    after = torch.rand(1)
    torch.manual_seed(0)
    torch.rand(64)
    assert torch.equal(after, torch.rand(1))
    assert "there" in str(caught.value)


def test_arguments_that_are_written_to() -> None:
    def write(x: torch.Tensor) -> torch.Tensor:
        y = 1 / x
        x.add_(1)
        return y

    with torch.no_grad(), pytest.raises(NotFiniteError, match=r"aten::reciprocal.*0 there"):
        checked(write)(torch.tensor([0.0, 1.0]))


def test_the_variable_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DORT_VERIFY", "finite")
    with torch.no_grad(), pytest.raises(NotFiniteError):
        compile_strictly(lambda x: x.log())[0](torch.zeros(2))


def test_other_words_are_refused() -> None:
    with pytest.raises(OptionError, match="a number of calls or 'finite'"):
        OrtBackendOptions(verify="nan")  # type: ignore[arg-type]
    assert OrtBackendOptions(verify="finite", freeze=True, weights="int8").verify == "finite"
