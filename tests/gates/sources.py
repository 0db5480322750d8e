"""The files that the gates read: found once, parsed once."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "dort_rewriter"


def python_files(*folders: str) -> list[Path]:
    """Every Python file below these folders of the repository."""
    found = sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    assert found, f"no Python file in {folders}: the gate would pass for the wrong reason"
    return found


@functools.cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def place(path: Path, line: int) -> str:
    """Name a line the way editors and terminals can open it."""
    return f"{path.relative_to(ROOT).as_posix()}:{line}"


def nodes(path: Path) -> Iterator[ast.AST]:
    return ast.walk(parse(path))
