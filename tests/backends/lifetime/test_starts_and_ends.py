"""A program in which several threads compile first, and run sessions to its very end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.entry_points import environment_with_entry_points
from tests.gates.sources import ROOT

pytestmark = pytest.mark.load_sensitive

LIMIT = 500
"""Seconds for a program that takes ten on a quiet machine."""


@pytest.mark.alternating
def test_threads_compile_at_once_and_run_until_the_end(tmp_path: Path) -> None:
    """It ends, and has done all it was to do; no session runs in what is taken down.

    NOTE: how it ends is not asked: with threads of this kind eager mode aborts, and `aot_eager`
    crashes, in what torch has taken down. Where it crashes is asked: not in a session.
    """
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-m", "tests.backends.lifetime.starts_and_ends"],
        cwd=ROOT,
        env={**environment_with_entry_points(tmp_path), "ONNXRT_CHANGE_REWRITER": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT,
    )
    assert done.stdout == "compiled\nends\ndrained\n", done.stderr
    assert "<dort_rewriter call>" not in done.stderr, done.stderr  # what each thread was in
    assert "Traceback" not in done.stderr, done.stderr
