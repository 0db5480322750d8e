"""What comparisons of exporters found is kept in short, and shown."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


def result(exporter: str, **others: Any) -> dict[str, Any]:
    known = {
        "error": None,
        "nodes": 10,
        "bytes": 1000,
        "agrees": True,
        "max_difference": 1e-7,
        "elsewhere": [],
        "judgment": None,
        "export_seconds": 2.0,
        "run_milliseconds": 0.5,
    }
    return {"exporter": exporter, **known, **others}  # fmt: skip


def defect(planted: str, *nodes: str, fault: str = "exporter") -> dict[str, Any]:
    return {"planted": planted, "fault": fault, "node": nodes[-1], "nodes": nodes}


def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    figures = importlib.import_module("exporter_figures")
    monkeypatch.setattr(figures, "KEPT", tmp_path / "kept.json")
    fails = [{"runtime": "openvino", "error": "RuntimeError: no `Loop`", "agrees": None,
              "max_difference": None}]  # fmt: skip
    judgment = {"fault": "kernel", "node": "Relu -> y"}
    wrong = result("torch", agrees=False, judgment=judgment, max_difference=0.5)
    found = {
        "a": {"results": [result("torch"), result("dort_rewriter", nodes=5, elsewhere=fails)],
              "defects": {"torch": [defect("Neg -> y", "Neg -> y")]}},
        "b": {"results": [wrong, result("dort_rewriter", nodes=20)],
              "defects": {"dort_rewriter": [defect("Sub -> x", "Sub -> x", "Neg -> y"),
                                            defect("Sub -> z", "Neg -> y")]}},
        "c": {"left out": "no model"},
    }  # fmt: skip
    figures.keep(found, {"torch": "2.13.0+cpu"}, ["a"])
    text = figures.page("a note")
    assert text.startswith(
        "a note\n\n# Exporters compared\n\n`dort-rewriter compare` for 2 models"
    )
    assert "1 in plain torch and 1 of transformers" in text
    assert "| right on onnxruntime | 1 right, 1 differ | 2 right |" in text
    assert "| on OpenVINO | 0 right | 0 right, 1 do not run |" in text
    assert "| nodes, relative | 1 | 1.00 |" in text
    assert "- a (`dort_rewriter`): OpenVINO: `RuntimeError: no 'Loop'`" in text
    assert "- b (`torch`): differs by 5.0e-01, by the kernel, first at `Relu -> y`" in text
    assert "2 of 3 are among these, 1 of them alone" in text
    assert "not located: `Sub -> z` in the file of b by `dort_rewriter`" in text
