"""Nothing grows past what one reads in a sitting: split by topic before that."""

from __future__ import annotations

import ast

from tests.gates.sources import nodes, place, python_files

MODULE_LINES = 800
FUNCTION_LINES = 60
USUAL_FUNCTION_LINES = 40
SHARE_ABOVE_USUAL = 0.05

FILES = python_files("dort_rewriter", "scripts")


def code_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Count the lines of a function without its docstring: a long explanation is no burden."""
    total = (function.end_lineno or 0) - function.lineno + 1
    if ast.get_docstring(function) is None:
        return total
    docstring = function.body[0]
    return total - ((docstring.end_lineno or 0) - docstring.lineno + 1)


def function_lengths() -> dict[str, int]:
    return {
        f"{place(path, node.lineno)} {node.name}": code_lines(node)
        for path in FILES
        for node in nodes(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def too_long(lengths: dict[str, int], limit: int) -> list[str]:
    return [f"{where}: {lines} lines" for where, lines in lengths.items() if lines > limit]


def test_modules_stay_within_the_budget() -> None:
    lengths = {
        place(path, 1): len(path.read_text(encoding="utf-8").splitlines()) for path in FILES
    }
    assert too_long(lengths, MODULE_LINES) == []


def test_functions_stay_within_the_budget() -> None:
    assert too_long(function_lengths(), FUNCTION_LINES) == []


def test_most_functions_are_short() -> None:
    lengths = function_lengths()
    long = too_long(lengths, USUAL_FUNCTION_LINES)
    assert len(long) <= SHARE_ABOVE_USUAL * len(lengths), long


def test_the_gate_counts_code_without_docstrings() -> None:
    function = ast.parse('def f():\n    """One\n    two."""\n    a = 1\n    return a').body[0]
    assert isinstance(function, ast.FunctionDef)
    assert code_lines(function) == 3
