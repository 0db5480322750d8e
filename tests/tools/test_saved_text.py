"""``dort-rewriter show FOLDER``: what is in a saved model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import dort_rewriter
from dort_rewriter import ExecutionError, OrtBackend
from dort_rewriter.deployment import folder as folder_module
from dort_rewriter.tools import cli, saved_text
from dort_rewriter.tools.saved_text import read_saved


class Model(nn.Module):
    """Named arguments, a plain one, a buffer that is written to, a result with parts."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)
        self.register_buffer("count", torch.zeros(1))

    def forward(
        self, x: torch.Tensor, pair: dict[str, torch.Tensor], scale: float = 2.0
    ) -> dict[str, Any]:
        self.count.add_(1)
        return {"y": self.linear(x) * scale + pair["bias"], "same": x, "all": (x.sum(), None)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch._dynamo.reset()
    path = tmp_path_factory.mktemp("saved") / "model"
    compiled = torch.compile(Model().eval(), backend=OrtBackend(), dynamic=True)
    with torch.no_grad():
        compiled(torch.ones(3, 4), {"bias": torch.ones(2)})
        dort_rewriter.save(compiled, path)
    return path


def test_people_read_what_is_in_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["show", str(folder)]) == 0
    text = capsys.readouterr().out
    assert f"{folder}: a saved model" in text
    assert f"made by: torch {torch.__version__}, " in text
    assert "here is" not in text
    assert "called under: no autocast, default type torch.float32; module in evaluation" in text
    assert "  x: float32 (2+, 4), written to or shown by a result\n" in text
    assert "  pair: float32 (2)\n" in text
    assert "  scale: 2.0, part of the graph\n" in text
    assert "result: dict of (y: result " in text
    assert "same: x itself, all: tuple of (result " in text
    assert "None))\n" in text
    assert "nodes (" in text
    assert "weights: 3 tensors inside, 44 bytes" in text
    assert "  linear.weight: parameter, float32 (2, 4)\n" in text
    assert "  count: buffer, float32 (1,), written to\n" in text


def test_programs_read_the_same(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["show", str(folder), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["loads_here"] is True
    call = data["calls"][0]
    assert call["arguments"][0] == {
        "name": "x",
        "type": "float32",
        "shape": [None, 4],
        "limits": "(2+, 4)",
        "device": "cpu",
    }
    assert {t["name"]: t["bytes"] for t in data["tensors"]} == {
        "linear.weight": 32,
        "linear.bias": 8,
        "count": 4,
    }
    assert call["nodes"] == sum(call["nodes_by_type"].values()) > 0


def test_its_model_is_shown_as_a_file_is(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["show", str(folder), "--count"]) == 0
    lines = capsys.readouterr().out.splitlines()
    shown = {line.split()[0]: int(line.split()[1]) for line in lines}
    assert shown == read_saved(folder).counts[0]


def test_what_other_versions_saved_is_shown(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = {**folder_module.made_by(), "torch": "9.9"}
    monkeypatch.setattr(saved_text, "made_by", lambda: here)
    text = str(read_saved(folder))
    assert "here is: torch 9.9, " in text
    assert "it has to be saved again" in text
    assert read_saved(folder).to_dict()["loads_here"] is False


def test_references_and_models_that_compute_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch._dynamo.reset()
    path = tmp_path / "views"
    compiled = torch.compile(lambda x: x.view(-1), backend=OrtBackend())
    with torch.no_grad():
        dort_rewriter.save(compiled, path, torch.ones(2, 3), weights="reference")
    text = str(read_saved(path))
    assert "model: none, nothing is computed" in text
    assert "weights: 0 tensors by reference" in text
    assert cli.main(["show", str(path), "--count"]) == 1
    assert "holds no ONNX model" in capsys.readouterr().err


def test_many_tensors_are_counted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved_text, "SHOWN", 1)
    assert str(read_saved(folder)).endswith("  ... 2 more")


def test_sizes_that_depend_on_each_other_are_said(tmp_path: Path) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda a, b: a + b, backend=OrtBackend(), dynamic=True)
    with torch.no_grad():
        dort_rewriter.save(compiled, tmp_path / "sum", torch.ones(3, 2), torch.ones(3, 2))
    found = read_saved(tmp_path / "sum")
    conditions = found.to_dict()["calls"][0]["conditions"]
    assert conditions
    assert f"  where {'; '.join(conditions)}\n" in str(found)
    assert "b.shape[0]" in str(found)


def test_a_folder_without_one_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["show", str(tmp_path)]) == 1
    assert "holds no saved model" in capsys.readouterr().err


@pytest.mark.parametrize("missing", ["calls", "made_by", "tensors", "files"])
def test_a_damaged_description_is_refused(
    folder: Path, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = folder_module.read_description(folder)
    del content[missing]
    monkeypatch.setattr(saved_text, "read_description", lambda path: content)
    with pytest.raises(ExecutionError, match="damaged"):
        read_saved(folder)
