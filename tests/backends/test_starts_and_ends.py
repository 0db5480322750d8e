"""A program in which several threads compile first, and run sessions to its very end."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.entry_points import environment_with_entry_points
from tests.gates.sources import ROOT

pytestmark = pytest.mark.load_sensitive

LIMIT = 500
"""Seconds for a program that takes ten on a quiet machine."""


def test_threads_compile_at_once_and_run_until_the_end(tmp_path: Path) -> None:
    """It ends, and has done all it was to do; no session runs in what is taken down.

    NOTE: it may abort: Python ends threads of this kind in the middle of C++, as those of eager
    mode.
    """
    done = subprocess.run(
        [sys.executable, "-m", "tests.backends.starts_and_ends"],
        cwd=ROOT,
        env={**environment_with_entry_points(tmp_path), "ONNXRT_CHANGE_REWRITER": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT,
    )
    assert done.stdout == "compiled\nends\ndrained\n", done.stderr
    assert done.returncode in (0, -signal.SIGABRT), done.stderr
    assert "Traceback" not in done.stderr, done.stderr
