"""Where a node runs is decided in one room: nothing outside of it asks what that depends on."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2] / "dort_rewriter"

DECIDING = frozenset(
    {
        *("choose_place", "has_torchs_order", "may_be_called", "mark_called", "set_plan"),
        *("Chooser", "torch_kernel", "partition_graph", "hoist_random", "correct_layouts"),
    }
)
"""What decides who computes a node, or changes the graph that it is decided about."""


def imported(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    found = (n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom))
    return {alias.name for node in found for alias in node.names}


def test_only_the_plan_decides_who_computes_a_node() -> None:
    files = list(ROOT.rglob("*.py"))
    users = {p.relative_to(ROOT).parts[0] for p in files if imported(p) & DECIDING}
    assert users == {"plan"}
    named = {name for p in files for name in imported(p) & DECIDING}
    assert named == DECIDING  # or what is listed here is gone
