"""The checks meant for a GPU hold without one, and say when there is none."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.alternating

SCRIPT = Path(__file__).resolve().parents[2] / "scripts/device_check.py"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("device_check", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "CHECKS", dict(module.CHECKS))
    return module


def test_every_check_holds_on_the_cpu(script: ModuleType, tmp_path: Path) -> None:
    script.CHECKS.pop("a layer of llama trains")  # tests/backends/programs/test_transformers.py
    file = tmp_path / "results.json"
    assert script.main(["--device", "cpu", "--json", str(file)]) == 0
    results = json.loads(file.read_text())
    assert set(results.values()) == {"ok"}
    assert len(results) == len(script.CHECKS) - len(script.NEEDS_CUDA)


def test_a_check_that_fails_fails_the_program(script: ModuleType, capsys: Any) -> None:
    def wrong(device: torch.device) -> None:
        raise AssertionError(f"not on {device}")

    script.CHECKS.clear()
    script.CHECKS.update(wrong=wrong, right=lambda device: None)
    assert script.main(["--device", "cpu"]) == 1
    printed = capsys.readouterr()
    assert "FAILED wrong" in printed.out
    assert "1 of 2 checks hold on cpu" in printed.out
    assert "not on cpu" in printed.err


def test_without_a_gpu_it_says_so(
    script: ModuleType, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert script.main([]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_a_gpu_that_onnxruntime_cannot_use_is_an_error(
    script: ModuleType, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import onnxruntime

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    assert script.main([]) == 1
    assert "onnxruntime-gpu" in capsys.readouterr().out
