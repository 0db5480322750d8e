"""Programs beside the package import what it has: nothing else tells before they are run."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path

import pytest

from tests.gates.sources import ROOT, nodes, python_files

ELSEWHERE = {
    *("build", "diffusers", "griffe", "playwright", "timm", "torch_geometric", "torchaudio"),
    "torchvision",
}
"""What single programs need and the tests do not install."""


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
        roots = {name.partition(".")[0] for name in imported(node)} - ELSEWHERE
        for root in roots - sys.stdlib_module_names:
            assert program.with_name(f"{root}.py").exists() or importlib.util.find_spec(root), root


def imported(node: ast.AST) -> list[str]:
    """The modules that a statement imports."""
    if isinstance(node, ast.ImportFrom):
        return [node.module or ""]
    return [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
