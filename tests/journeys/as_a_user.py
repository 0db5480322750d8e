"""Journeys of a new user, with the installed wheel: each is a program in a process of its own.

Each ends well and prints what it says that it prints, and nothing else. ``nox -s journeys`` runs
them, on both stacks; this folder is outside the default collection.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = sorted(Path(__file__).with_name("programs").glob("*.py"))
PAGES = ("README.md", "docs/quick_start.md", "docs/deploy.md", "docs/troubleshooting.md")
OF_OTHERS = re.compile(r"No CUDA runtime is found|cudart_version|^  warnings\.warn\(|^\s*$")
"""Lines that torch and onnxruntime-training print in any program."""


def run(program: Path, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a program as a user does: from a folder of his own, without settings of tests."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("DORT_", "PYTHON", "ORT_"))}
    kept["DORT_CACHE_DIR"] = str(folder / "cache")
    kept["ONNXRT_CHANGE_REWRITER"] = "1"  # as who has torch 2.8 sets it
    return subprocess.run(
        [sys.executable, str(program)],
        cwd=folder,
        env={**kept, **variables},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def unexpected(text: str) -> list[str]:
    return [line for line in text.splitlines() if not OF_OTHERS.search(line)]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_a_journey(program: Path, tmp_path: Path) -> None:
    done = run(program, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert unexpected(done.stderr) == []
    assert unexpected(done.stdout) == [f"{program.stem}: done"]


def blocks() -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        for match in re.finditer(r"^```python\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL):
            line = text[: match.start()].count("\n") + 1
            found.append((f"{page}:{line}", match[1]))
    return found


@pytest.mark.parametrize("block", [pytest.param(b, id=place) for place, b in blocks()])
def test_a_block_of_the_documentation(block: str, tmp_path: Path) -> None:
    """As it stands there; what it prints on purpose goes to the standard output."""
    program = tmp_path / "block.py"
    program.write_text(block, encoding="utf-8")
    done = run(program, tmp_path)
    assert done.returncode == 0, done.stderr
    # One block asks for the log.
    assert [line for line in unexpected(done.stderr) if not line.startswith("INFO:")] == []
