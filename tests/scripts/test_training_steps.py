"""Steps that the script trains are judged: by the first five, by all, by what is learned."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("safetensors", reason="safetensors is an extra")

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module("training_steps")


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module("training_figures")


@pytest.mark.parametrize("is_dynamic", [False, True])
def test_a_model_that_learns(is_dynamic: bool, script: Any) -> None:
    threads = torch.get_num_threads()
    try:
        found = script.measure(script.MODELS["mlp"], 50, is_dynamic, 0.0)
    finally:
        torch.set_num_threads(threads)
    assert script.reasons(found) == []
    assert found["last over first"] < 0.5
    judged = {"from float64": 3e-5, "torch's from float64": 1e-5}
    worse = {"first five": 1e-4, "all": 1.0, "last over first": 0.9, "bytes": 3_000_000}
    assert len(script.reasons({**found, **worse, **judged})) == 4
    as_near = {**found, "all": 1e-4, **judged, "torch's from float64": 2e-5}
    assert script.reasons(as_near) == []


def test_the_judge_is_a_loop_in_float64(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "most_apart", lambda found: -1.0)
    found = script.measure(script.MODELS["mlp"], 5, False, 0.0)
    assert 0 < found["from float64"] < 1e-5
    assert 0 < found["torch's from float64"] < 1e-5
    assert script.reasons({"error": "no"}) == ["no"]


def test_what_is_kept_is_shown(
    figures: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "KEPT", tmp_path / "kept.json")
    record = {"all": 1.234e-6, "torch's own": 2e-6, "bytes": 9890, "parameters": 48400,
              "milliseconds": {"torch": 0.2, "onnxruntime": 0.05}}  # fmt: skip
    figures.keep({"b": record, "a": record}, "static", ["a", "b"])
    figures.keep({"a": {"all": 3e-6}}, "dynamic", ["a", "b"])
    lines = figures.section().splitlines()
    assert "| a | 48,400 | 10 | 0.2 | 0.05 | 4 | 1e-06 | 3e-06 | 2e-06 |" in lines
    assert "| b | 48,400 | 10 | 0.2 | 0.05 | 4 | 1e-06 | - | 2e-06 |" in lines
    assert lines[-1].startswith("Geometric mean of the 2 speeds: 4.")
