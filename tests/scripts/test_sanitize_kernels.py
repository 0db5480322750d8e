"""The script that feeds crafted nodes to the kernels under sanitizers."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dort_rewriter.kernels.operators import OPERATORS

pytestmark = pytest.mark.alternating

SCRIPT = Path(__file__).resolve().parents[2] / "scripts/sanitize_kernels.py"


@pytest.mark.skipif(shutil.which("c++") is None, reason="there is no C++ compiler")
def test_nothing_is_found() -> None:
    """Every operator of the library computes cases, and refuses others."""
    command = [sys.executable, SCRIPT, "--cases", "2100", "--flags=-O0"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    assert sum(answers.values()) == 2100
    for name in (o.name for o in OPERATORS.values() if o.library == "own"):
        assert answers[f"{name} computed"] > 0
        assert answers[f"{name} refused"] > 0


def test_changed_descriptions_of_saved_models_are_refused_or_right() -> None:
    command = [sys.executable, SCRIPT, "--saved", "150"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    assert sum(answers.values()) == 150
    for name in ("mlp", "views", "counts", "attention", "step"):
        assert answers[f"{name} refused"] > 0
    assert sum(n for name, n in answers.items() if name.endswith(" right")) > 0


def test_crafted_nodes_do_not_end_the_process_in_torch() -> None:
    command = [sys.executable, SCRIPT, "--torch", "200"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    assert sum(answers.values()) == 200
    for name in ("addmm", "bmm", "convolution"):
        assert answers[f"{name} computed"] > 0
        assert answers[f"{name} refused"] > 0
