"""Training as users do it: several steps, every number compared with eager's.

Warnings are errors in these tests, as in all of them: the backend gives none.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.backends.ways import compile_strictly, models

pytestmark = pytest.mark.usefixtures("silent")

STATIC_OR_DYNAMIC = pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])


class Digits(nn.Module):
    """A small net for images of digits."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 4, 3)
        self.second = nn.Conv2d(4, 8, 3, stride=2)
        self.hidden = nn.Linear(8 * 6 * 6, 16)
        self.last = nn.Linear(16, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = torch.relu(self.second(torch.relu(self.first(images))))
        hidden = torch.relu(self.hidden(torch.flatten(features, 1)))
        return torch.log_softmax(self.last(hidden), dim=1)


@STATIC_OR_DYNAMIC
def test_digits_are_learnt_as_in_eager(dynamic: bool) -> None:
    model = Digits()
    twin = copy.deepcopy(model)
    compiled, backend = compile_strictly(model, dynamic=dynamic)
    optimizers = [torch.optim.Adam(m.parameters(), lr=0.01) for m in (model, twin)]
    images, labels = torch.randn(20, 1, 16, 16), torch.randint(0, 10, (20,))
    losses: list[float] = []
    for start in (0, 5, 10, 15, 0, 5):
        x, y = images[start : start + 5], labels[start : start + 5]
        for module, optimizer in zip((compiled, twin), optimizers, strict=True):
            optimizer.zero_grad()
            loss = nn.functional.nll_loss(module(x), y)
            loss.backward()
            losses.append(loss.item())
        assert losses[-2] == pytest.approx(losses[-1], abs=1e-4)
        for (name, a), b in zip(model.named_parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad, atol=1e-4, rtol=1e-4, msg=name)
        for optimizer in optimizers:
            optimizer.step()
    assert models(backend) == [1, 1]
    assert backend.execution_count == 12


@pytest.mark.parametrize("arena", ["session", "shared", "none"])
def test_the_memory_may_come_from_anywhere(arena: str) -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    compiled, _ = compile_strictly(model, dynamic=True, arena=arena)
    for batch in (2, 7, 3):
        x = torch.randn(batch, 4)
        got = torch.autograd.grad(compiled(x).sum(), list(model.parameters()))
        want = torch.autograd.grad(model(x).sum(), list(model.parameters()))
        torch.testing.assert_close(got, want)


def test_a_batch_of_one_is_specialized() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    compiled, backend = compile_strictly(model, dynamic=True)
    for batch in (1, 2, 4, 6, 8, 1):
        x = torch.randn(batch, 4)
        got = torch.autograd.grad(compiled(x).sum(), list(model.parameters()))
        want = torch.autograd.grad(model(x).sum(), list(model.parameters()))
        torch.testing.assert_close(got, want)
    assert models(backend) == [1, 1, 1, 1]  # forward and backward for 1, and for the others
    assert backend.execution_count == 12


@STATIC_OR_DYNAMIC
def test_some_gradients_are_none(dynamic: bool) -> None:
    class Partial(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(4, 3), nn.Linear(4, 3)
            self.frozen = nn.Parameter(torch.randn(3), requires_grad=False)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, Any]:
            return self.used(x) * self.frozen + y.detach(), {"nothing": None}

    model = Partial()
    twin = copy.deepcopy(model)
    compiled, _ = compile_strictly(model, dynamic=dynamic)
    x, y = torch.randn(2, 4, requires_grad=True), torch.randn(2, 3, requires_grad=True)
    gradients = []
    for module in (compiled, twin):
        first, rest = module(x, y)
        assert rest == {"nothing": None}
        first.sum().backward()
        gradients.append((x.grad, y.grad))
        x.grad = y.grad = None
    torch.testing.assert_close(gradients[0][0], gradients[1][0])
    assert gradients[0][1] is None
    for (name, a), b in zip(model.named_parameters(), twin.parameters(), strict=True):
        assert (a.grad is None) is (b.grad is None), name
        if a.grad is not None:
            torch.testing.assert_close(a.grad, b.grad, msg=name)


@STATIC_OR_DYNAMIC
def test_several_results_get_gradients(dynamic: bool) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.sigmoid() * y, (x * y).sum(), y.t()

    compiled, backend = compile_strictly(function, dynamic=dynamic)
    x, y = (torch.randn(3, 4, requires_grad=True) for _ in range(2))
    got, want = (
        torch.autograd.grad(sum(r.sum() for r in run(x, y)), (x, y))
        for run in (compiled, function)
    )
    torch.testing.assert_close(got, want)
    assert models(backend) == [1, 1]


def _relu_to_sigmoid(model: Any) -> None:
    for node in model.graph.node:
        if node.op_type == "Relu":
            node.op_type = "Sigmoid"


def test_a_transform_changes_a_layer() -> None:
    layers = [nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)]
    compiled, _ = compile_strictly(
        nn.Sequential(*layers), pre_ort_model_transforms=(_relu_to_sigmoid,)
    )
    x = torch.randn(3, 4)
    with torch.no_grad():
        got = compiled(x)
        torch.testing.assert_close(got, layers[2](layers[0](x).sigmoid()))
        assert not torch.allclose(got, nn.Sequential(*layers)(x))


def test_forward_and_backward_are_dumped_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONNXRT_DUMP_PATH", str(tmp_path / "step_"))
    model = nn.Sequential(nn.Linear(4, 2), nn.ReLU())
    compiled, _ = compile_strictly(model)
    for _ in range(2):
        compiled(torch.randn(3, 4)).sum().backward()
        names = sorted(p.name for p in tmp_path.iterdir())
        assert names == [f"step_{i}.{kind}" for i in (0, 1) for kind in ("onnx", "txt")]
