"""The benchmark of the pattern sets, at its smallest size."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

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
    import bench_subjects  # type: ignore[import-not-found]

    return bench_subjects


def test_a_wrong_result_is_seen(subjects: ModuleType) -> None:
    """Wrong numbers, types and shapes, missing results; noise and infinities are no error."""
    one = torch.ones(3)
    assert subjects.compare([one + 1e-7], [one])[1]
    assert subjects.compare([one / 0, 3], [one / 0, 3]) == (0.0, True)
    assert subjects.compare([1e4 * one + 1e-2], [1e4 * one])[1]
    for wrong in (one + 1e-3, one.double(), one[:2], one / 0, one * float("nan"), None):
        assert not subjects.compare([wrong], [one])[1]
    assert not subjects.compare([one, 2], [one, 3])[1]


def test_kernel_times_are_split_by_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is before the first run, or no kernel, is not counted."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    from kernel_times import split_by_run  # type: ignore[import-not-found]

    def node(
        ts: int, dur: int, op: str = "Add", suffix: str = "_kernel_time"
    ) -> dict[str, object]:
        args = {"op_name": op}
        return {"cat": "Node", "name": f"n{suffix}", "ts": ts, "dur": dur, "args": args}

    runs = [{"cat": "Session", "name": "model_run", "ts": ts, "dur": 9} for ts in (10, 20)]
    events = [
        *runs,
        node(11, 3),
        node(13, 4),
        node(14, 1, "Mul"),
        node(21, 5),
        node(22, 9, "A", ""),
    ]
    name = "n_kernel_time"
    assert split_by_run(events) == [
        {("Add", name): 7, ("Mul", name): 1},
        {("Add", name): 5},
    ]
