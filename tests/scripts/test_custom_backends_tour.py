"""The tour of custom backends, with a small DenseNet."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.entry_points import environment_with_entry_points
from tests.gates.sources import ROOT

pytestmark = pytest.mark.alternating

SCRIPT = ROOT / "scripts/examples/custom_backends_tour.py"
SMALL = ["--image", "32", "--batch", "2", "--growth", "8", "--blocks", "2", "2"]


def test_the_program_runs_at_small_size(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *SMALL],
        capture_output=True,
        text=True,
        check=False,
        env=environment_with_entry_points(tmp_path),
    )
    assert done.returncode == 0, done.stderr
    for expected in (
        "3 graphs: before the branch",
        "the results of 3 models, each compared with torch",
        "break 0: a branch on the value of a tensor",
        "Data-dependent branching",
        "Use `torch.cond` to express dynamic control flow",
        "opset20: registered by a decorator",
        "onnx_custom: registered by an entry point",
        "refuse: NotImplementedError: it takes no graph at all",
        "onnx_custom_backend: compiled the graph",
        "== DenseNet-11, 2 images of 32x32",
        "onnxrt",
        "torch.export, then to_onnx: ",
    ):
        assert expected in done.stdout, expected
