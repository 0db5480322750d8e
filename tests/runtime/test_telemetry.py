"""Who decides whether onnxruntime sends what it does: whoever set its variable or imported it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.gates.sources import ROOT

VARIABLE = "ORT_DISABLE_TELEMETRY"
LOAD = "from dort_rewriter.ort_module import load_onnxruntime; load_onnxruntime()"
PRINT = f"import os; print(os.environ.get({VARIABLE!r}))"


@pytest.mark.parametrize(
    ("given", "statements", "expected"),
    [
        (None, LOAD, "1"),
        ("0", LOAD, "0"),
        (None, f"import onnxruntime; {LOAD}", "None"),
        (None, "import torch, dort_rewriter", "None"),
    ],
)
def test_nothing_is_sent_by_a_program_that_leaves_it_to_this_package(
    given: str | None, statements: str, expected: str
) -> None:
    environment = {k: v for k, v in os.environ.items() if k != VARIABLE}
    if given is not None:
        environment[VARIABLE] = given
    code = f"import warnings; warnings.simplefilter('ignore'); {statements}; {PRINT}"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == expected
