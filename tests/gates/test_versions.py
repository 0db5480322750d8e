"""Only :mod:`dort_rewriter.hook.versions` decides something by the version of torch."""

from __future__ import annotations

import ast

import pytest

from tests.gates.sources import PACKAGE, nodes, python_files

MAY = {"hook/versions.py", "hook/patch.py"}
"""The facts, and the record that compares a series with them."""

FACTS = {"OLDEST", "REMOVED_IN", "loaded_series", "loaded_version", "parse_series"}


def names_torchs_version(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and ast.unparse(node) in (
        "torch.__version__",
        "torch.version",
    )


def decides(node: ast.AST) -> bool:
    """Whether an expression looks into a version of torch, rather than shows it."""
    if isinstance(node, ast.Compare):
        return any(
            names_torchs_version(inner)
            or (isinstance(inner, ast.Name) and inner.id in FACTS)
            or (isinstance(inner, ast.Attribute) and inner.attr in FACTS)
            for inner in ast.walk(node)
        )
    if isinstance(node, ast.Attribute | ast.Subscript):  # .split("."), [:3], .cuda
        return names_torchs_version(node.value)
    if isinstance(node, ast.Call):
        reads = ast.unparse(node.func).split(".")[-1] in ("Version", "parse", "TorchVersion")
        return reads and any(names_torchs_version(argument) for argument in node.args)
    return False


def test_no_other_module_compares_versions_of_torch() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}: {ast.unparse(node)}"
        for path in python_files(PACKAGE.name)
        if path.relative_to(PACKAGE).as_posix() not in MAY
        for node in nodes(path)
        if isinstance(node, ast.expr) and decides(node)
    ]
    assert not found


@pytest.mark.parametrize(
    "text",
    [
        "torch.__version__ >= '2.9'",
        "torch.__version__.split('.')",
        "torch.__version__[:3]",
        "Version(torch.__version__)",
        "torch.version.cuda",
        "loaded_series() < (2, 9)",
        "series < versions.REMOVED_IN",
    ],
)
def test_it_would_be_seen(text: str) -> None:
    assert any(decides(node) for node in ast.walk(ast.parse(text)))


def test_showing_a_version_is_fine() -> None:
    for text in ("print(torch.__version__)", "{'torch': torch.__version__}"):
        assert not any(decides(node) for node in ast.walk(ast.parse(text)))
