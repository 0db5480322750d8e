"""The benchmark of the pattern sets, at its smallest size."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

pytestmark = [pytest.mark.alternating, pytest.mark.load_sensitive]

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


def test_a_model_is_measured(tmp_path: Path) -> None:
    """One row for each graph and set, right and at rest."""
    figures = tmp_path / "figures.json"
    command = [sys.executable, str(SCRIPTS / "bench_patterns.py"), "--models", "mlp"]
    command += ["--sets", "none", "default", "--sizes", "static"]
    command += ["--seconds", "0", "--near-misses", "--json", str(figures)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(figures.read_text())["rows"]
    kinds = ("forward", "backward", "inference")
    assert [(r["graph"], r["set"]) for r in rows] == [
        (f"mlp/{kind}/static", name) for kind in kinds for name in ("none", "default")
    ]
    for row in rows:
        assert row["within_tolerance"]
        assert 0 <= row["max_error"] < 2e-5
        assert row["applied_again"] == {}
        assert row["ms"] > 0
        assert row["nodes_before"] >= row["nodes_after"] > 0
        assert row["set"] == "default" or row["speedup"] == 1
        assert all(f"x {reason}" in done.stdout for reason in row["near_misses"])
    assert any(row["near_misses"] for row in rows)


@pytest.fixture(name="subjects")
def load_subjects(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import bench_patterns  # type: ignore[import-not-found]

    return bench_patterns


def test_a_wrong_result_is_seen(subjects: ModuleType) -> None:
    """Wrong numbers, types and shapes, missing results; noise and infinities are no error."""
    one = torch.ones(3)
    assert subjects.compare([one + 1e-7], [one])[1]
    assert subjects.compare([one / 0, 3], [one / 0, 3]) == (0.0, True)
    assert subjects.compare([1e4 * one + 1e-2], [1e4 * one])[1]
    for wrong in (one + 1e-3, one.double(), one[:2], one / 0, one * float("nan"), None):
        assert not subjects.compare([wrong], [one])[1]
    assert not subjects.compare([one, 2], [one, 3])[1]
