"""A folder of a training step trains in Node as it does in torch. ``nox -s runtimes`` runs it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.runtimes.beside_torch import EXAMPLE, check_runner


def test_losses_are_those_of_torch(tmp_path: Path) -> None:
    npm, node = shutil.which("npm"), shutil.which("node")
    assert npm is not None, "Node and npm are needed"
    assert node is not None, "Node is needed"
    (tmp_path / "package.json").write_text('{"name": "runtimes", "private": true}')
    install = [npm, "install", "--ignore-scripts", "--no-audit", "--no-fund", "onnxruntime-node"]
    subprocess.run(install, cwd=tmp_path, check=True, capture_output=True)
    check_runner([node, EXAMPLE / "node.mjs"], tmp_path, tmp_path / "step")
