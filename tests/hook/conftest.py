"""What the tests of the hook share: programs of their own, and a process left as it was."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from dort_rewriter import install, uninstall
from dort_rewriter.hook.report import is_expected
from dort_rewriter.hook.versions import ships_backend
from tests.gates.sources import ROOT

HAS_ORT_BACKEND = ships_backend(torch.__version__)

Program = Callable[..., str]


def entry_points() -> str:
    """The entry points of ``pyproject.toml`` as they are written on installation."""
    lines: list[str] = []
    for line in (ROOT / "pyproject.toml").read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            group = line.partition("]")[0].removeprefix("[project.entry-points.")
            inside = group != line.partition("]")[0]
            lines += [f"[{group.strip(chr(34))}]"] * inside
        elif "=" in line and lines and inside:
            lines.append(line.replace('"', ""))
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="session")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that makes this clone a distribution, with the entry points of today."""
    folder = tmp_path_factory.mktemp("installation")
    info = folder / "dort_rewriter-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: dort-rewriter\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text(entry_points())
    return folder


@pytest.fixture
def program(installation: Path, tmp_path: Path) -> Program:
    """A function that runs Python code where the package is installed."""

    def run(code: str, **variables: str) -> str:
        # Nothing of what the tests themselves were started with.
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("DORT_", "ONNXRT_"))}
        paths = os.pathsep.join([str(installation), str(ROOT)])
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=tmp_path,
            env={**kept, "PYTHONPATH": paths, **variables},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run


@pytest.fixture
def unhooked() -> Iterator[None]:
    """Run a test on an untouched torch; the hook is put back after it if it was there."""
    before = is_expected()
    uninstall()
    yield
    uninstall()
    if before:
        install()
