"""``dort-rewriter show``."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

from dort_rewriter import pretty_onnx
from dort_rewriter.tools import cli, dot
from tests.tools.test_onnx_text import MODEL


@pytest.fixture
def path(tmp_path: Path) -> str:
    path = tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model(MODEL), path)
    return str(path)


def test_the_text_is_that_of_pretty_onnx(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["show", path]) == 0
    assert capsys.readouterr().out == f"{pretty_onnx(path)}\n"


def test_nodes_are_counted_also_in_subgraphs(
    path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["show", path, "--count"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["com.microsoft.FusedMatMul", "1"] in lines
    assert ["Neg", "1"] in lines
    assert len(lines) == 9


def test_json_has_what_a_program_needs(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["show", path, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["opsets"] == {"": 18, "local": 1, "com.microsoft": 1}
    assert data["inputs"][0] == {"name": "x", "type": "FLOAT", "shape": ["N", 3]}
    assert data["outputs"] == [{"name": "y", "type": "FLOAT", "shape": ["N", "M"]}]
    assert (data["initializers"], data["initializer_bytes"]) == (3, 4 + 4 * 8 + 12 * 8)
    assert data["functions"] == ["local.Gelu"]
    assert data["nodes"] == 9
    assert data["nodes_by_type"]["Add"] == 1


def test_it_draws(path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "drawing.dot"
    assert cli.main(["show", path, "--draw", str(target)]) == 0
    assert target.read_text().startswith("digraph")
    assert "Transpose" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("drawing", "message"),
    [
        ("", "No ONNX model can be read from "),
        ("x.jpg", "A drawing is saved as "),
        ("x.png", "No png was drawn: "),
        ("nowhere/x.svg", "The drawing cannot be written: "),
    ],
)
def test_a_failure_has_one_message(
    drawing: str,
    message: str,
    path: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(dot, "find_dot", lambda: None)
    model = path if drawing else str(tmp_path / "none.onnx")
    more = ["--draw", str(tmp_path / drawing)] if drawing else []
    assert cli.main(["show", model, *more]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"dort-rewriter show: {message}")
    assert len(captured.err.splitlines()) == 1
