"""Write the folder of the web page: a small model that learns what a visitor draws.

usage: python scripts/examples/training_files/make_page.py FOLDER

Needs ``pip install "dort-rewriter[cpu,onnx-training]"``. Serve the folder with ``npm install
onnxruntime-web`` beside it, or any copy of that package named ``ort/``.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import torch
from torch import nn

import dort_rewriter

HERE = Path(__file__).resolve().parent
SIZE, LABELS = 12, 3


def write_page(folder: Path) -> None:
    """The page, its scripts and the training step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(SIZE * SIZE, 32), nn.ReLU(), nn.Linear(32, LABELS))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    example = (torch.rand(4, SIZE * SIZE), torch.zeros(4, dtype=torch.int64))
    dort_rewriter.export_training_step(
        model,
        nn.functional.cross_entropy,
        optimizer,
        example,
        folder / "model",
        dynamic_shapes=({0: "drawings"}, {0: "drawings"}),
    )
    for name in ("index.html", "trainer.mjs"):
        shutil.copyfile(HERE / name, folder / name)


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    write_page(target)
