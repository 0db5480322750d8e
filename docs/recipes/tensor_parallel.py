"""Tensor parallel over processes: `torchrun --nproc-per-node 2 tensor_parallel.py`."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)


class Block(torch.nn.Module):
    """The feed-forward block of a transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(32)
        self.up = torch.nn.Linear(32, 64)
        self.down = torch.nn.Linear(64, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


def network(parallel: bool) -> torch.nn.Module:
    torch.manual_seed(0)
    model = torch.nn.Sequential(Block(), Block())
    if parallel:
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for block in model:
            plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
            parallelize_module(block, mesh, plan)
    return model


def check() -> None:
    x = torch.randn(8, 32, generator=torch.Generator().manual_seed(0))
    whole = network(parallel=False)
    whole(x).square().mean().backward()
    compiled = torch.compile(network(parallel=True), backend="onnxrt")
    compiled(x).square().mean().backward()
    torch.testing.assert_close(compiled(x), whole(x), atol=1e-5, rtol=1e-5)
    for one, other in zip(compiled.parameters(), whole.parameters(), strict=True):
        gradient = one.grad.full_tensor() if hasattr(one.grad, "full_tensor") else one.grad
        torch.testing.assert_close(gradient, other.grad, atol=1e-5, rtol=1e-5)
    print(f"process {dist.get_rank()} of {dist.get_world_size()}: the gradients of one process")


def main() -> None:
    dist.init_process_group("gloo")
    try:
        check()
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
