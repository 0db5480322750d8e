"""No module of the package imports itself, through others or for types."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path

from tests.gates.sources import PACKAGE, ROOT, nodes, python_files


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path, known: Mapping[str, Path]) -> set[str]:
    """The modules of the package that a file imports, wherever in it the import stands."""
    found: set[str] = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names} & known.keys()
            found |= inner or {node.module}
    return found & known.keys()


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Paths that come back to where they began, one for each module found to be on one."""
    found, done = [], set[str]()

    def visit(name: str, path: list[str]) -> None:
        if name in path:
            found.append([*path[path.index(name) :], name])
        elif name not in done:
            for other in sorted(graph[name]):
                visit(other, [*path, name])
            done.add(name)

    for name in graph:
        visit(name, [])
    return found


def test_there_are_no_circles() -> None:
    known = {name_of(path): path for path in python_files(PACKAGE.name)}
    # The package's own face imports for type checkers what it hands on by name.
    graph = {name: imports(p, known) for name, p in known.items() if name != PACKAGE.name}
    graph = {name: others - {PACKAGE.name} for name, others in graph.items()}
    assert circles(graph) == []


def test_the_gate_sees_a_circle() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c", "a"]]
    assert circles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []
