"""What a runner of a training step is compared with: torch's own loop."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn

from dort_rewriter import export_training_step, load_training_state

EXAMPLE = Path(__file__).resolve().parents[2] / "scripts" / "examples" / "training_files"
STEPS = 100


def made() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)
    )


def check_runner(command: Sequence[str | Path], place: Path, folder: Path) -> None:
    """Have a command, run in a place, train the step in a folder: ``FOLDER BATCHES STEPS`` follow.

    It prints the losses as JSON, and writes the state to ``trained.safetensors``.
    """
    torch.manual_seed(0)
    model = made()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches = [(torch.randn(8, 1, 6, 6), torch.randint(0, 3, (8,))) for _ in range(4)]
    export_training_step(model, F.cross_entropy, optimizer, batches[0], folder)
    given = {f"input.{i}": x for i, (x, _) in enumerate(batches)}
    given |= {f"target.{i}": y for i, (_, y) in enumerate(batches)}
    save_file(given, str(folder / "batches.safetensors"))
    whole = [*command, folder, folder / "batches.safetensors", str(STEPS)]
    done = subprocess.run(whole, cwd=place, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    got = json.loads(done.stdout)
    want = []
    for i in range(STEPS):
        x, y = batches[i % 4]
        loss = F.cross_entropy(model(x), y)
        want.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6)
    assert got[-1] < got[0] / 2
    os.replace(folder / "trained.safetensors", folder / "state.safetensors")
    assert load_file(folder / "state.safetensors")["step"] == STEPS
    again = made()
    load_training_state(again, folder)
    x = batches[0][0]  # NOTE: a bias before a batch norm drifts: its gradient is noise
    torch.testing.assert_close(again.eval()(x), model.eval()(x), rtol=1e-2, atol=1e-2)
