"""Programs beside the package import what it has: nothing else tells before they are run."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

from tests.gates.sources import ROOT, nodes, python_files


@pytest.mark.parametrize(
    "program", python_files("scripts", "examples"), ids=lambda p: str(p.relative_to(ROOT))
)
def test_what_is_imported_is_there(program: Path) -> None:
    for node in nodes(program):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dort_rewriter"):
            assert node.module is not None
            module = importlib.import_module(node.module)
            for name in (alias.name for alias in node.names):
                if not hasattr(module, name):
                    importlib.import_module(f"{node.module}.{name}")
