"""Weights inside the model: a change of any of them is noticed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from dort_rewriter import OrtBackend


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()


def _network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)).eval()


def _compile(module: nn.Module) -> tuple[Callable[..., Any], OrtBackend]:
    backend = OrtBackend({"freeze": True, "fallback": False})
    return torch.compile(module, backend=backend), backend


def _sessions(backend: OrtBackend) -> list[Any]:
    table = backend._all_ort_execution_info.execution_info_per_graph_module
    return [info for infos in table.values() for info in infos]


def _fed(info: Any) -> list[str]:
    return [i.name for i in info.session.get_inputs()]


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_weights_are_inside_the_model(context: Callable[[], Any]) -> None:
    """The session is fed the batch alone, the results are those of eager."""
    module = _network()
    compiled, backend = _compile(module)
    x = torch.randn(3, 4)
    with context():
        torch.testing.assert_close(compiled(x), module(x))
        torch.testing.assert_close(compiled(x), module(x))
    (info,) = _sessions(backend)
    assert len(_fed(info)) == 1


def _step(module: nn.Module) -> None:
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    with torch.enable_grad():
        module(torch.ones(3, 4)).sum().backward()
    optimizer.step()
    module.zero_grad()


def _load(module: nn.Module) -> None:
    state = {k: v + 1 for k, v in module.state_dict().items()}
    module.load_state_dict(state)


def _replace_data(module: nn.Module) -> None:
    for p in module.parameters():
        p.data = p.data * 2


def _add_in_place(module: nn.Module) -> None:
    with torch.no_grad():
        for p in module.parameters():
            p.add_(1.0)


def _move(module: nn.Module) -> None:
    _add_in_place(module)
    module.to(torch.float64).to(torch.float32)


def _replace_parameter(module: nn.Module) -> None:
    assert isinstance(module, nn.Sequential)
    assert isinstance(module[0], nn.Linear)
    module[0].weight = nn.Parameter(torch.ones(8, 4))


def _update_buffer(module: nn.Module) -> None:
    module[1].running_mean.add_(3.0)  # type: ignore[index, operator, union-attr]


@pytest.mark.parametrize(
    "change",
    [_step, _load, _replace_data, _add_in_place, _move, _replace_parameter, _update_buffer],
)
def test_a_change_is_noticed(change: Callable[[nn.Module], None]) -> None:
    """Each way to change a weight, several times in a row: never a stale result."""
    module = _network()
    compiled, _ = _compile(module)
    x = torch.randn(3, 4)
    with torch.no_grad():
        before = compiled(x).clone()
        for i in range(4):
            change(module)
            expected = module(x)
            if i == 0:
                assert not torch.allclose(expected, before)
            torch.testing.assert_close(compiled(x), expected)
            torch.testing.assert_close(compiled(x), expected)


def test_weights_that_keep_changing_become_inputs() -> None:
    """Building a model at every call would be slower than feeding the weights."""
    module = _network()
    compiled, backend = _compile(module)
    x = torch.randn(3, 4)
    with torch.no_grad():
        for _ in range(5):
            _add_in_place(module)
            torch.testing.assert_close(compiled(x), module(x))
    inputs = [len(_fed(info)) for info in _sessions(backend)]
    assert inputs[:2] == [1, 1]
    assert inputs[-1] > 1
    assert len(inputs) == 3


def test_training_keeps_its_weights_as_inputs() -> None:
    """They change at every step."""
    module = _network().train()
    reference = copy.deepcopy(module)
    compiled, backend = _compile(module)
    x = torch.randn(3, 4)
    compiled(x).sum().backward()
    reference(x).sum().backward()
    for p, q in zip(module.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)
    assert all(len(_fed(info)) > 1 for info in _sessions(backend))


def test_a_graph_with_a_part_in_torch_is_frozen_too() -> None:
    """Each block holds the weights it reads."""

    class Cut(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.relu(self.first(x))
            return torch.relu(self.second(torch.bernoulli(y.sigmoid() * 0 + 1) * y))

    module = Cut().eval()
    backend = OrtBackend({"freeze": True})
    compiled = torch.compile(module, backend=backend)
    x = torch.randn(3, 4)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), module(x))
        _add_in_place(module)
        torch.testing.assert_close(compiled(x), module(x))
    assert not any(name.startswith("arg0") for info in _sessions(backend) for name in _fed(info))


def test_memory_that_is_freed_is_not_taken_for_the_old_weight() -> None:
    """A new tensor at the same address, with the same version, is another tensor."""
    module = nn.Linear(256, 256, bias=False).eval()
    compiled, _ = _compile(module)
    x = torch.randn(2, 256)
    with torch.no_grad():
        compiled(x)
        for i in range(3):
            module.weight.data = torch.full((256, 256), float(i))
            torch.testing.assert_close(compiled(x), module(x))


def _optimizers() -> list[Any]:
    def fused(kind: Any) -> Callable[[Any], torch.optim.Optimizer]:
        return lambda parameters: kind(parameters, lr=0.5, fused=True)

    class WritesData(torch.optim.SGD):
        """Moves no version."""

        def step(self, closure: Any = None) -> None:
            for group in self.param_groups:
                for p in group["params"]:
                    p.data.add_(p.grad, alpha=-0.5)

    kinds = ("SGD", "Adam", "AdamW", "Adagrad")
    made = [pytest.param(fused(getattr(torch.optim, k)), id=f"{k}-fused") for k in kinds]
    return [*made, pytest.param(lambda p: WritesData(p, lr=0.5), id="data")]


@pytest.mark.parametrize("make", _optimizers())
def test_a_step_that_moves_no_version_is_noticed(make: Callable[[Any], Any]) -> None:
    module = _network()
    compiled, backend = _compile(module)
    x = torch.randn(3, 4)
    optimizer = make(module.parameters())
    for _ in range(4):
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), module(x))
        module(x).sum().backward()
        optimizer.step()
    assert backend.execution_count == 4


def test_the_steps_of_other_parameters_change_nothing() -> None:
    module, other = _network(), _network()
    compiled, backend = _compile(module)
    x = torch.randn(3, 4)
    optimizer = torch.optim.SGD(other.parameters(), lr=0.5, fused=True)
    for _ in range(3):
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), module(x))
        other(x).sum().backward()
        optimizer.step()
    assert len(_sessions(backend)) == 1


def test_statistics_of_a_batch_norm_made_in_eager_mode_are_noticed() -> None:
    module = _network()
    compiled, backend = _compile(module)
    x = torch.randn(3, 4)
    for _ in range(3):
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), module(x))
            module.train()
            module(x * 3 + 1)
            module.eval()
    assert backend.execution_count == 3
