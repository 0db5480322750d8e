from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.alternating

SCRIPT = Path(__file__).resolve().parents[2] / "scripts/opset_coverage.py"


@pytest.fixture(name="script")
def load_script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    return importlib.import_module("opset_coverage")


def test_the_share_is_of_what_can_be_traced(script: ModuleType) -> None:
    records = [
        {"op": "a", "graph": "forward", "status": "converted"},
        {"op": "a", "graph": "backward", "status": "cut", "ops": ["aten::b: no converter"]},
        {"op": "a", "graph": "backward", "status": "torch kernel", "ops": ["aten::c"]},
        {"op": "a", "graph": "forward", "status": "untraceable"},
        {"op": "a", "status": "skipped"},
    ]
    figures = script.summarize(records)
    assert (figures["traceable"], figures["converted_share"]) == (3, 0.3333)
    assert figures["whole_share"] == 0.6667
    assert figures["missing"] == {"aten::b: no converter": 1}
    page = script.to_markdown(records, {**figures, "environment": {"torch": "2"}, "samples": 1})
    assert "| `a` | 1/1 | 0/2 | `aten::c` | `aten::b`, untraceable |" in page


def test_real_entries_are_measured(tmp_path: Path) -> None:
    """Forward and backward, casts around bfloat16, cancelling float32, draws, complex numbers,
    an order of equal elements."""
    figures = tmp_path / "figures.json"
    page = tmp_path / "coverage.md"
    names = ("sigmoid", "bfloat16", "native_layer_norm", "cauchy", "complex", "to_sparse", "topk")
    command = [sys.executable, str(SCRIPT), "--ops", "|".join(names), "--samples", "1"]
    command += ["--workers", "1", "--json", str(figures), "--markdown", str(page)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    report = json.loads(figures.read_text())
    assert report["counts"]["wrong"] == report["counts"]["error"] == 0, done.stdout
    assert report["entries"] == len(names)
    kinds = {(g["op"], g["graph"], g["dtype"]) for g in report["graphs"]}
    assert {("sigmoid", "backward", "float32"), ("sigmoid", "forward", "bool")} <= kinds
    fallbacks = {g["op"]: g["ops"] for g in report["graphs"] if g["status"] == "cut"}
    assert set(fallbacks) == {"to_sparse"}
    assert all("torch.sparse_coo tensors are not converted" in op for op in fallbacks["to_sparse"])
    called = {g["op"] for g in report["graphs"] if g["status"] == "torch kernel"}
    assert called == {"cauchy", "topk"}
    assert "| `sigmoid` | 3/3 | 1/1 |  |  |" in page.read_text()
    short = report["converted_share"] < 0.88 or report["whole_share"] < 0.99
    assert done.returncode == short
