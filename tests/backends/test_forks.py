"""Forked children call, compile and forget models: never a wait for what only the parent has."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys

import pytest

from tests.gates.sources import ROOT

pytestmark = [
    pytest.mark.load_sensitive,
    pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="needs fork"),
]


@pytest.mark.parametrize(
    ("threads", "patterns"),
    [(1, "default+onnxruntime"), (2, "default+onnxruntime"), (2, "default+onnxruntime+kernels")],
)
def test_children_of_a_process_that_ran_models(threads: int, patterns: str) -> None:
    command = [sys.executable, "-m", "tests.backends.forks", str(threads), patterns]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    ends = json.loads(done.stdout.splitlines()[-1])
    assert {name: end for name, end in ends.items() if end != "done"} == {}, done.stderr


@pytest.mark.parametrize(("autoload", "ways"), [("0", "pool loader"), ("1", "fork executor")])
def test_children_of_a_process_that_imported_torch_only(autoload: str, ways: str) -> None:
    """torch worked in parallel before this package was there to see the fork."""
    command = [sys.executable, "-m", "tests.backends.late_forks", *ways.split()]
    environment = os.environ | {
        "ONNXRT_CHANGE_REWRITER": "1",
        "TORCH_DEVICE_BACKEND_AUTOLOAD": autoload,
    }
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    ends = json.loads(done.stdout.splitlines()[-1])
    assert ends == dict.fromkeys(ways.split(), "done"), done.stderr
