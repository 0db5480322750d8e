"""DistributedDataParallel: `torchrun --nproc-per-node 2 ddp.py`."""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class Network(torch.nn.Module):
    """A class of its own: Dynamo passes over a Sequential that DDP calls."""

    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(16, 64)
        self.norm = torch.nn.LayerNorm(64)
        self.down = torch.nn.Linear(64, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.norm(torch.nn.functional.gelu(self.up(x))))


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return DistributedDataParallel(Network())


def train(model: torch.nn.Module) -> torch.Tensor:
    generator = torch.Generator().manual_seed(dist.get_rank())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(8):
        x = torch.randn(32, 16, generator=generator)  # another batch in each process
        loss = torch.nn.functional.cross_entropy(model(x), x.argmax(1) % 4)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return torch.stack(losses)


def main() -> None:
    dist.init_process_group("gloo")
    try:
        eager = train(network())
        compiled = train(torch.compile(network(), backend="onnxrt"))
        torch.testing.assert_close(compiled, eager, atol=1e-5, rtol=1e-5)
        print(f"process {dist.get_rank()} of {dist.get_world_size()}:", *map(float, compiled))
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # DDP keeps gloo's threads: Python's end may abort in one of them
