from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.mark.alternating
def test_what_eager_mode_refuses_of_an_entry_is_counted(tmp_path: Path) -> None:
    found = tmp_path / "found.json"
    command = [
        sys.executable,
        str(SCRIPTS / "refusals.py"),
        "--ops",
        "trunc",
        "--json",
        str(found),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    records = json.loads(found.read_text(encoding="utf-8"))
    assert {r["case"] for r in records} == {"bool #0", "complex64 #0"}
    assert {r["status"] for r in records} == {"kept"}
    assert done.stdout.endswith("{'kept': 2}\n")
