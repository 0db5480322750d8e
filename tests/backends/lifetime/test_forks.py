"""Forked children call, compile and forget models: never a wait for what only the parent has."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys

import pytest

from dort_rewriter.runtime.threads import omp_pause
from tests.gates.sources import ROOT

pytestmark = [
    pytest.mark.load_sensitive,
    pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="needs fork"),
]


@pytest.mark.alternating
@pytest.mark.parametrize(
    ("threads", "patterns"),
    [(1, "default+onnxruntime"), (2, "default+onnxruntime"), (2, "default+onnxruntime+kernels")],
)
def test_children_of_a_process_that_ran_models(threads: int, patterns: str) -> None:
    command = [sys.executable, "-m", "tests.backends.lifetime.forks", str(threads), patterns]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    ends = json.loads(done.stdout.splitlines()[-1])
    assert {name: end for name, end in ends.items() if end != "done"} == {}, done.stderr


@pytest.mark.alternating
@pytest.mark.parametrize(("autoload", "ways"), [("0", "pool loader"), ("1", "fork executor")])
def test_children_of_a_process_that_imported_torch_only(autoload: str, ways: str) -> None:
    """torch worked in parallel before this package was there to see the fork."""
    command = [sys.executable, "-m", "tests.backends.lifetime.late_forks", *ways.split()]
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


CHILD = """
import os

if (child := os.fork()) == 0:
    import torch
    from dort_rewriter.runtime.threads import omp_pause

    os._exit(0 if omp_pause() is not None else 3)
os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(omp_pause() is None, reason="the OpenMP of this torch cannot end its threads")
def test_a_child_that_imported_torch_itself_pauses_its_threads() -> None:
    """A server forks its workers before they import anything."""
    environment = os.environ | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "1"}
    command = [sys.executable, "-c", CHILD]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
