"""The first walk-through: its losses, its models, its drawings."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.entry_points import environment_with_entry_points
from tests.gates.sources import ROOT

pytestmark = pytest.mark.alternating

SCRIPT = ROOT / "scripts/examples/custom_backend_101.py"


def test_the_program_runs_at_small_size(tmp_path: Path) -> None:
    folder = tmp_path / "drawings"
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--folder", str(folder)],
        capture_output=True,
        text=True,
        check=False,
        env=environment_with_entry_points(tmp_path),
    )
    assert done.returncode == 0, done.stderr
    text = done.stdout
    assert "-- forward\nopset: domain='' version=18" in text
    assert "-- backward\nopset" in text
    lines = re.findall(r"^(\S.*?) +loss: (.*)$", text, flags=re.MULTILINE)
    assert [name for name, _ in lines] == ["eager", "static, 4 models", "dynamic, 2 models"]
    losses = [[float(loss) for loss in values.split()] for _, values in lines]
    assert all(one > two > three for one, two, three in losses), "the losses fall"
    assert all(abs(a - b) < 1e-4 for row in losses for a, b in zip(row, losses[0], strict=True))
    for name in ("forward", "backward"):
        assert (folder / f"{name}.svg").read_text(encoding="utf-8").startswith("<svg")
