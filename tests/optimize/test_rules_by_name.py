"""docs/rules.md names what is there: rules, converters, tests."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from dort_rewriter.export.registry import builtin_converters
from dort_rewriter.optimize.patterns import onnxruntime, standard

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "rules.md"
KERNELS = {"QuickGelu", "SoftmaxCrossEntropyLoss"}
"""Operators the page names that are no rules."""


BY_NAME, ON_CUDA = PAGE.read_text(encoding="utf-8").split("## On CUDA")


def rows(text: str = BY_NAME) -> list[list[str]]:
    """The cells of each row of the tables."""
    lines = [line for line in text.splitlines() if line[:1] == "|"]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in cells if row[0] not in ("what", "rule") and row[0][:3] != "---"]


def test_each_rule_has_a_row_and_each_name_is_one() -> None:
    rules = {rule.__name__ for rule in (*standard.RULES, *onnxruntime.RULES)}
    named = {name for row in rows() for name in re.findall(r"`([^`]+)`", row[1])}
    operators = {name for name in named if name.startswith("aten::")}
    named -= operators | KERNELS
    assert rules - named == set(), "each rule is named in docs/rules.md, in the second column"
    assert named - rules == set(), "docs/rules.md names rules that no set has"
    assert {name for name in operators if name not in builtin_converters()} == set()


def test_each_rule_of_onnxruntime_says_what_it_writes_on_cuda() -> None:
    named = [name for row in rows(ON_CUDA) for name in re.findall(r"`([^`]+)`", row[0])]
    assert sorted(named) == sorted(rule.__name__ for rule in onnxruntime.RULES)


@pytest.mark.parametrize("row", [pytest.param(row, id=row[0].replace(" ", "_")) for row in rows()])
def test_each_row_names_tests_that_exist(row: list[str]) -> None:
    tests = [cell.strip("`") for cell in row[2:] if cell != "the same"]
    assert tests
    for test in tests:
        path, _, name = test.partition("::")
        module = ast.parse((ROOT / "tests" / path).read_text(encoding="utf-8"))
        assert name in {n.name for n in module.body if isinstance(n, ast.FunctionDef)}
