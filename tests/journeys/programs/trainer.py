"""A loop of training with batches of several sizes, saved half-way and gone on with."""

import torch
from torch import nn

import dort_rewriter

dort_rewriter.install()


def make() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 3))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def train(steps: range, model: nn.Module, run: nn.Module, optimizer: torch.optim.Optimizer):
    losses = []
    for step in steps:
        torch.manual_seed(step)
        x = torch.randn(8 if step % 3 else 5, 6)
        target = x.sum(1).sign().long() + 1
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(run(x), target)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


model, optimizer = make()
expected = train(range(40), model, model, optimizer)
model, optimizer = make()
losses = train(range(20), model, torch.compile(model, backend="onnxrt"), optimizer)
torch.save([model.state_dict(), optimizer.state_dict()], "half.pt")
model, optimizer = make()
for each, state in zip((model, optimizer), torch.load("half.pt"), strict=True):
    each.load_state_dict(state)
losses += train(range(20, 40), model, torch.compile(model, backend="onnxrt"), optimizer)
torch.testing.assert_close(torch.tensor(losses), torch.tensor(expected), rtol=1e-4, atol=1e-5)
assert losses[-1] < losses[0] / 2
print("trainer: done")
