"""A compiled optimizer: one graph for all parameters; a schedule that does not compile again."""

from __future__ import annotations

import torch


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(16, 64), torch.nn.GELU(), torch.nn.LayerNorm(64), torch.nn.Linear(64, 4)
    )


def train(compiled: bool) -> tuple[list[float], torch.nn.Module]:
    model = network()
    # A learning rate in a tensor can change without a new graph.
    optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(1e-2))
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=10)
    step = torch.compile(optimizer.step, backend="onnxrt") if compiled else optimizer.step
    generator = torch.Generator().manual_seed(0)
    losses = []
    for _ in range(10):
        x = torch.randn(32, 16, generator=generator)
        loss = torch.nn.functional.cross_entropy(model(x), x.argmax(1) % 4)
        loss.backward()
        step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses, model


def main() -> None:
    (eager, one), (compiled, other) = train(False), train(True)
    print("eager ", *(f"{loss:.4f}" for loss in eager))
    print("onnxrt", *(f"{loss:.4f}" for loss in compiled))
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


if __name__ == "__main__":
    main()
