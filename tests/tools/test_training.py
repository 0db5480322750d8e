"""One training step: its gradients are those of the same step written by hand."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dort_rewriter import OptionError, make_aot_ort, train_loop, train_loop_mixed_precision


@pytest.fixture(autouse=True)
def _fresh() -> Any:
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def layers() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))


def gradients(model: torch.nn.Module) -> tuple[torch.Tensor, ...]:
    return tuple(p.grad for p in model.parameters() if p.grad is not None)


def test_gradients_and_update_are_those_of_one_step() -> None:
    model = layers()
    twin = copy.deepcopy(model)
    x = torch.randn(3, 4)
    got = train_loop(model, x)
    twin(x).square().mean().backward()
    assert len(got) == 4
    torch.testing.assert_close(got, gradients(twin))
    for moved, start, slope in zip(model.parameters(), twin.parameters(), got, strict=True):
        torch.testing.assert_close(moved, start - 1e-3 * slope)


def test_gradients_of_earlier_steps_are_not_added() -> None:
    model = layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    x = torch.randn(3, 4)
    first = train_loop(model, x, optimizer=optimizer)
    kept = [g.clone() for g in first]
    second = train_loop(model, x, optimizer=optimizer)
    torch.testing.assert_close(list(first), kept)
    torch.testing.assert_close(second, first)


def test_a_compiled_model_gives_the_gradients_of_eager() -> None:
    model = layers()
    twin = copy.deepcopy(model)
    backend, _ = make_aot_ort(fallback=False)
    x = torch.randn(3, 4)
    got = train_loop(torch.compile(model, backend=backend, fullgraph=True), x)
    assert backend.execution_count == 2
    torch.testing.assert_close(got, train_loop(twin, x))


def test_loss_and_optimizer_are_used() -> None:
    model = layers()
    twin = copy.deepcopy(model)
    x = torch.randn(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    got = train_loop(model, x, loss_fn=torch.nn.L1Loss(), optimizer=optimizer)
    twin(x).abs().mean().backward()
    torch.testing.assert_close(got, gradients(twin))
    torch.testing.assert_close(model[0].bias, twin[0].bias - 0.5 * got[1])


class Wrapped(torch.nn.Module):
    def __init__(self, wrap: Any) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 2)
        self.wrap = wrap

    def forward(self, x: torch.Tensor) -> Any:
        return self.wrap(self.linear(x))


@pytest.mark.parametrize(
    "wrap",
    [
        lambda y: (torch.arange(3), y),
        lambda y: {"index": torch.arange(3), "logits": [y, y * 3]},
        lambda y: SimpleNamespace(loss=y.square().mean()),
        lambda y: {"loss": y.square().mean(), "logits": y},
    ],
    ids=["tuple", "mapping", "own loss", "own loss in a mapping"],
)
def test_the_prediction_is_found_in_the_output(wrap: Any) -> None:
    model = Wrapped(wrap)
    twin = copy.deepcopy(model)
    x = torch.randn(3, 4)
    got = train_loop(model, x)
    twin.linear(x).square().mean().backward()
    torch.testing.assert_close(got, gradients(twin))


@pytest.mark.parametrize("step", [train_loop, train_loop_mixed_precision])
def test_a_model_without_parameters_to_train_is_refused(step: Any) -> None:
    frozen = layers().requires_grad_(False)
    for model in (torch.nn.ReLU(), frozen):
        with pytest.raises(OptionError, match=r"(ReLU|Sequential) has no parameter that needs"):
            step(model, torch.randn(3, 4))


@pytest.mark.parametrize("step", [train_loop, train_loop_mixed_precision])
def test_what_is_no_model_or_no_optimizer_is_refused(step: Any) -> None:
    for model in ("model.py", torch.nn.Linear):
        with pytest.raises(OptionError, match=r"The model is a torch.nn.Module, .* not "):
            step(model, torch.randn(3, 4))
    with pytest.raises(OptionError, match=r"optimizer is one that was made, .* not <class"):
        step(layers(), torch.randn(3, 4), optimizer=torch.optim.Adam)


def test_a_loss_that_depends_on_nothing_is_refused() -> None:
    for wrap, message in (
        (lambda y: y.detach(), "does not depend on any parameter"),
        (lambda y: y.argmax(), "no floating point tensor"),
    ):
        with pytest.raises(OptionError, match=message):
            train_loop(Wrapped(wrap), torch.randn(3, 4))
    with pytest.raises(OptionError, match="No parameter got a gradient"):
        train_loop(
            Wrapped(lambda y: y), torch.randn(3, 4), loss_fn=lambda y, t: t.requires_grad_().sum()
        )


def test_mixed_precision_computes_in_bfloat16() -> None:
    seen = []
    model = Wrapped(lambda y: (seen.append(y.dtype), y)[1])
    twin = copy.deepcopy(model)
    x = torch.randn(3, 4)
    got = train_loop_mixed_precision(model, x)
    assert seen[0] is torch.bfloat16
    assert {g.dtype for g in got} == {torch.float32}
    # bfloat16 keeps 8 bits
    torch.testing.assert_close(got, train_loop(twin, x), atol=0.02, rtol=0.05)


def test_mixed_precision_returns_unscaled_gradients() -> None:
    model = layers()
    twin = copy.deepcopy(model)
    x = torch.randn(3, 4)
    got = train_loop_mixed_precision(model, x, dtype=torch.float16)
    # float16 keeps 11 bits
    torch.testing.assert_close(got, train_loop(twin, x), atol=0.01, rtol=0.01)
    torch.testing.assert_close(model[0].weight, twin[0].weight, atol=1e-4, rtol=0.0)
