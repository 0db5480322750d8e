"""accelerate: `accelerate launch accelerate_launch.py`, in one process or several."""

from __future__ import annotations

import torch
from accelerate import Accelerator


class Network(torch.nn.Module):
    """A class of its own: Dynamo passes over a Sequential that DDP calls."""

    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(16, 64)
        self.norm = torch.nn.LayerNorm(64)
        self.down = torch.nn.Linear(64, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.norm(torch.nn.functional.gelu(self.up(x))))


def batches(process: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(process)
    return [torch.randn(32, 16, generator=generator) for _ in range(8)]


def loss_of(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(model(x), x.argmax(1) % 4)


def train(accelerator: Accelerator) -> torch.Tensor:
    torch.manual_seed(0)
    model = Network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer = accelerator.prepare(model, optimizer)
    losses = []
    for x in batches(accelerator.process_index):
        loss = loss_of(model, x)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return accelerator.reduce(torch.stack(losses), "mean")


def train_alone(processes: int) -> torch.Tensor:
    """The same in eager mode, in one process that has the batches of all."""
    torch.manual_seed(0)
    model = Network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for parts in zip(*map(batches, range(processes)), strict=True):
        loss = loss_of(model, torch.cat(parts))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return torch.stack(losses)


def main() -> None:
    accelerator = Accelerator(cpu=True, dynamo_backend="onnxrt")
    losses = train(accelerator)
    expected = train_alone(accelerator.num_processes)
    torch.testing.assert_close(losses, expected, atol=1e-4, rtol=1e-4)
    accelerator.print(f"{accelerator.num_processes} processes, losses", *map(float, losses))
    accelerator.end_training()


if __name__ == "__main__":
    main()
