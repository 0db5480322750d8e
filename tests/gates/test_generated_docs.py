"""The pages that say what the code says are current, and say it."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from tests.gates.sources import ROOT
from tests.gates.test_readme import nox_sessions


def load_generator() -> ModuleType:
    path = ROOT / "scripts" / "make_docs.py"
    spec = importlib.util.spec_from_file_location("make_docs", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


make_docs = load_generator()


@pytest.mark.parametrize("page", make_docs.pages(), ids=lambda page: page.name)
def test_pages_are_current(page: Path) -> None:
    current: str = make_docs.pages()[page]
    assert page.read_text(encoding="utf-8") == current, "run python scripts/make_docs.py"


def test_the_versions_are_those_of_the_sessions() -> None:
    text: str = make_docs.versions_page()
    rows = {line.split("`")[1]: line for line in text.splitlines() if line.startswith("| `tests")}
    sessions = {name for name in nox_sessions() if name.startswith("tests-")}
    assert set(rows) == sessions - {"tests-exhaustive"}  # it starts others
    assert {name for name, row in rows.items() if " always " in row} == {"tests-new", "tests-old"}
    assert "| 2.8.0 | onnxruntime-training 1.19.2 |" in rows["tests-old"]


def test_the_docstrings_of_the_sessions_name_the_torch_that_they_install() -> None:
    noxfile = ast.parse((ROOT / "noxfile.py").read_text(encoding="utf-8"))
    known = make_docs.constants(noxfile)
    for session in [n for n in noxfile.body if isinstance(n, ast.FunctionDef)]:
        for row in make_docs.tested(session, known):
            _, torch, _, says = row.split(" | ")
            named = set(re.findall(r"torch (\d[\w.]*\d)", says))
            assert named <= {torch}, f"the docstring of {make_docs.name_of(session)}: {says}"


def test_pins_are_found_by_name() -> None:
    pins = ["torch==2.8.0", "onnxruntime-training==1.19.2", "numpy<2"]
    assert make_docs.version_of("torch", pins) == "2.8.0"
    assert make_docs.version_of("onnxruntime", pins) == "(the newest)"
    assert make_docs.version_of("torch", ["torch>=2.16.0.dev0"]) == "2.16.0.dev0 or newer"
