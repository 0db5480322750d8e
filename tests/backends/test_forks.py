"""Forked children call, compile and forget models: never a wait for what only the parent has."""

from __future__ import annotations

import json
import multiprocessing
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
