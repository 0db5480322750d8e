"""The README is true: what it names exists, and what exists is named."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import numpy
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from tests.gates.sources import PACKAGE, ROOT, parse

README = (ROOT / "README.md").read_text(encoding="utf-8")
PYTHON_BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def decorators(function: ast.FunctionDef) -> str:
    return " ".join(ast.unparse(decorator) for decorator in function.decorator_list)


def nox_sessions() -> set[str]:
    """The names that ``nox -l`` shows, read without nox."""
    found = set()
    for node in parse(ROOT / "noxfile.py").body:
        if isinstance(node, ast.FunctionDef) and "nox.session" in decorators(node):
            named = re.search(r"name='([\w-]+)'", decorators(node))
            found.add(named[1] if named else node.name)
    return found


def test_code_organization_names_each_folder() -> None:
    listed = re.findall(r"^\| `dort_rewriter/(\w+)/` \|", README, flags=re.MULTILINE)
    assert sorted(listed) == sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))


def test_the_sessions_exist() -> None:
    assert set(re.findall(r"nox -s ([\w-]+)", README)) <= nox_sessions()


def test_each_flavour_of_onnxruntime_has_an_extra() -> None:
    named = re.findall(
        r"^\| `pip install \"dort-rewriter\[(\w+)\]\"` \| `([\w-]+)` \|", README, re.M
    )
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for extra, distribution in named:
        assert re.search(rf'^{extra} = \["{distribution}>=', pyproject, flags=re.MULTILINE), extra
    assert {"cpu", "gpu", "training"} == {extra for extra, _ in named}


@pytest.mark.parametrize("block", PYTHON_BLOCKS)
def test_the_examples_are_python(block: str) -> None:
    ast.parse(block)


def test_the_example_of_to_onnx_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = (block for block in PYTHON_BLOCKS if "to_onnx" in block)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(block, names)
    x = names["torch"].randn(4, 10)
    (got,) = ReferenceEvaluator("model.onnx").run(None, {_only_input("model.onnx"): x.numpy()})
    numpy.testing.assert_allclose(got, names["model"](x).detach().numpy(), rtol=1e-4, atol=1e-5)


def _only_input(filename: str) -> str:
    graph = onnx.load(filename).graph
    parameters = {initializer.name for initializer in graph.initializer}
    (name,) = (value.name for value in graph.input if value.name not in parameters)
    return str(name)
