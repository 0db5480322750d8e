"""FSDP2, parameters in pieces over the processes: `torchrun --nproc-per-node 2 fsdp.py`."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Layer(torch.nn.Module):
    """A class of its own: Dynamo passes over a Sequential that is compiled in place."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(16)
        self.linear = torch.nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.nn.functional.gelu(self.linear(self.norm(x)))


def network() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(Layer(), Layer(), Layer())


def train(compiled: bool) -> torch.Tensor:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = network()
    for layer in model:
        if compiled:
            layer.compile(backend="onnxrt")  # each layer: FSDP gathers it before, frees it after
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    generator = torch.Generator().manual_seed(dist.get_rank())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(8):
        x = torch.randn(32, 16, generator=generator)
        loss = torch.nn.functional.cross_entropy(model(x), x.argmax(1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return torch.stack(losses)


def main() -> None:
    dist.init_process_group("gloo")
    try:
        eager, compiled = train(compiled=False), train(compiled=True)
        torch.testing.assert_close(compiled, eager, atol=1e-5, rtol=1e-5)
        print(f"process {dist.get_rank()} of {dist.get_world_size()}:", *map(float, compiled))
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
