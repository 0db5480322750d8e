"""A folder of a training step trains in Node as it does in torch. ``nox -s runtimes`` runs it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn

from dort_rewriter import export_training_step, load_training_state

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "examples" / "training_files" / "node.mjs"
STEPS = 100


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with onnxruntime for Node."""
    folder = tmp_path_factory.mktemp("node")
    npm = shutil.which("npm")
    assert npm is not None, "Node and npm are needed"
    (folder / "package.json").write_text('{"name": "runtimes", "private": true}')
    install = [npm, "install", "--ignore-scripts", "--no-audit", "--no-fund", "onnxruntime-node"]
    subprocess.run(install, cwd=folder, check=True, capture_output=True)
    return folder


def test_losses_are_those_of_torch(place: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches = [(torch.randn(8, 1, 6, 6), torch.randint(0, 3, (8,))) for _ in range(4)]
    export_training_step(model, F.cross_entropy, optimizer, batches[0], tmp_path)
    given = {f"input.{i}": x for i, (x, _) in enumerate(batches)}
    given |= {f"target.{i}": y for i, (_, y) in enumerate(batches)}
    save_file(given, str(tmp_path / "batches.safetensors"))
    node = shutil.which("node")
    assert node is not None, "Node is needed"
    command = [node, SCRIPT, tmp_path, tmp_path / "batches.safetensors", str(STEPS)]
    done = subprocess.run(command, cwd=place, check=True, capture_output=True, text=True)
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
    os.replace(tmp_path / "trained.safetensors", tmp_path / "state.safetensors")
    assert load_file(tmp_path / "state.safetensors")["step"] == STEPS
    again = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)
    )
    load_training_state(again, tmp_path)
    x = batches[0][0]  # NOTE: a bias before a batch norm drifts: its gradient is noise
    torch.testing.assert_close(again.eval()(x), model.eval()(x), rtol=1e-2, atol=1e-2)
