"""What runs of the zoo found is kept; what a later run finds right is settled."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


def found(**models: dict[str, str]) -> dict[str, Any]:
    """The results of a run, by name and way."""
    return {
        "versions": {"torch": "2.13.0"},
        "left out": {},
        "models": {
            f"timm/{name}": [{"way": w, "status": s, "detail": "far"} for w, s in ways.items()]
            for name, ways in models.items()
        },
    }


def test_a_finding_is_settled_where_it_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    reliability = importlib.import_module("reliability")
    monkeypatch.setattr(reliability, "KEPT", tmp_path / "kept.json")
    ways = {"inference": "right", "training": "wrong"}
    reliability.keep("first", found(a=ways, b=ways))
    reliability.keep("second", found(a={"training": "right"}, c={"training": "right"}))
    kept = json.loads((tmp_path / "kept.json").read_text())
    assert kept["first"]["counts"]["timm"] == {
        "inference: right": 2,
        "training: right": 1,
        "training: wrong": 1,
    }
    assert kept["first"]["findings"] == {"timm/b, training": "wrong: far"}
    assert kept["second"]["counts"]["timm"] == {"training: right": 1}
    assert "| timm | training | 1 | 1 |" in reliability.page("a note")


def test_a_run_is_kept_once_under_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it finds right now is counted in it, not in the one it stands for."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    reliability = importlib.import_module("reliability")
    monkeypatch.setattr(reliability, "KEPT", tmp_path / "kept.json")
    reliability.keep("whole", found(a={"training": "wrong"}, b={"training": "right"}))
    reliability.keep("whole", found(a={"training": "right"}, b={"training": "right"}))
    assert "| timm | training | 2 | 0 |" in reliability.page("a note")
