"""The custom backend, step by step: inference, one training step, a training loop.

usage: python scripts/examples/custom_backend_101.py [--epochs N] [--batch N] [--folder DIR]

1. A small network runs through ONNX Runtime: `torch.compile(model, backend=onnx_custom_backend)`.
2. Forward and backward through `aot_autograd`, with the decompositions that fit the exporter; the
   two models are printed, and drawn to SVG files in the folder.
3. A regression on the diabetes data of scikit-learn: three epochs in eager mode, then with static
   sizes (four models, since the last batch is smaller), then with dynamic ones (two models).
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_diabetes
from torch._dynamo.backends.common import aot_autograd

from dort_rewriter import (
    get_decomposition_table,
    onnx_custom_backend,
    plot_dot,
    pprint_storage,
    pretty_onnx,
)

Batches = list[tuple[torch.Tensor, torch.Tensor]]


def make_mlp() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(10, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1)
    ).to(DEVICE)


def make_training_backend(storage: dict[str, Any]) -> Callable[..., Any]:
    """A backend that compiles forward and backward graphs, and keeps their models."""
    return aot_autograd(
        fw_compiler=lambda graph, args: onnx_custom_backend(graph, args, storage=storage),
        decompositions=get_decomposition_table(),
    )


def run_inference() -> None:
    model, x = make_mlp(), torch.randn(5, 10, device=DEVICE)
    storage: dict[str, Any] = {}
    compiled = torch.compile(
        model, backend=lambda graph, args: onnx_custom_backend(graph, args, storage=storage)
    )
    with torch.no_grad():
        difference = float((compiled(x) - model(x)).abs().max())
    print(f"\n== inference: the largest difference to eager is {difference:.1e}")
    print(pprint_storage(storage))


def train_one_step(folder: Path) -> None:
    model, x = make_mlp(), torch.randn(5, 10, device=DEVICE)
    storage: dict[str, Any] = {}
    compiled = torch.compile(model, backend=make_training_backend(storage))
    compiled(x).square().sum().backward()
    gradients = [p.grad for p in model.parameters()]
    twin = make_mlp()
    twin(x).square().sum().backward()
    differences = [
        float((g - p.grad).abs().max()) for g, p in zip(gradients, twin.parameters(), strict=True)
    ]
    print(f"\n== one step: the largest difference of a gradient is {max(differences):.1e}")
    for name, instance in zip(("forward", "backward"), storage["instance"], strict=True):
        print(f"\n-- {name}\n{pretty_onnx(instance['onnx'])}")
        drawing = plot_dot(instance["onnx"]).save(folder / f"{name}.svg")
        print(f"-- drawn to {drawing}")


def load_batches(size: int) -> Batches:
    """The data in batches; with 442 rows the last one is smaller."""
    data, target = load_diabetes(return_X_y=True)
    x = torch.tensor(data, dtype=torch.float32, device=DEVICE)
    y = torch.tensor(target, dtype=torch.float32, device=DEVICE).reshape(-1, 1)
    y = (y - y.mean()) / y.std()
    x = x / x.std(dim=0)
    return list(zip(x.split(size), y.split(size), strict=True))


def train(model: torch.nn.Module, step: Any, batches: Batches, epochs: int) -> list[float]:
    """The mean loss of each epoch; ``step`` is the model, compiled or not."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for _ in range(epochs):
        total = 0.0
        for x, y in batches:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(step(x), y)
            loss.backward()
            optimizer.step()
            total += float(loss.detach())
        losses.append(total / len(batches))
    return losses


def run_regression(epochs: int, size: int) -> None:
    batches = load_batches(size)
    model = make_mlp()
    eager = copy.deepcopy(model)
    expected = train(eager, eager, batches, epochs)
    print(f"\n== diabetes, {len(batches)} batches, {epochs} epochs")
    print_losses("eager", expected)
    for dynamic in (False, True):
        torch._dynamo.reset()
        storage: dict[str, Any] = {}
        twin = copy.deepcopy(model)
        backend = make_training_backend(storage)
        compiled = torch.compile(twin, backend=backend, dynamic=dynamic, fullgraph=True)
        losses = train(twin, compiled, batches, epochs)
        name = f"{'dynamic' if dynamic else 'static'}, {len(storage['instance'])} models"
        print_losses(name, losses)
        torch.testing.assert_close(losses, expected, atol=1e-4, rtol=1e-4)


def print_losses(name: str, losses: list[float]) -> None:
    print(f"{name:<20} loss: {'  '.join(f'{loss:.6f}' for loss in losses)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--folder", type=Path, default=Path("custom_backend_101"))
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    run_inference()
    torch._dynamo.reset()
    train_one_step(options.folder)
    run_regression(options.epochs, options.batch)


DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

if __name__ == "__main__":
    main()
