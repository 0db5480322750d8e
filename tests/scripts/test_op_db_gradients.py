"""Gradients of op_db as files: judged in this process, and a wrong one is found."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import pytest
import torch

from tests.gates.sources import ROOT

pytestmark = pytest.mark.alternating


@pytest.fixture(scope="module")
def script() -> Any:
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        yield importlib.import_module("op_db_gradients")
    finally:
        sys.path.remove(str(ROOT / "scripts"))


def entry(name: str) -> Any:
    from torch.testing._internal.common_methods_invocations import op_db

    return next(e for e in op_db if e.name == name)


def test_files_give_the_gradients_of_eager_mode(script: Any) -> None:
    records = [*script.measure(entry("addcmul"), 3, 1)]
    assert [r["status"] for r in records] == ["right"] * 3
    assert [r["reference"] for r in records] == ["right"] * 3
    assert [*script.measure(entry("isnan"), 3, 1)] == []


def test_a_wrong_file_is_wrong(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run = script.run_file

    def off_by_a_thousandth(proto: Any, tensors: Any) -> list[torch.Tensor]:
        return [g * 1.001 for g in run(proto, tensors)]

    monkeypatch.setattr(script, "run_file", off_by_a_thousandth)
    (record,) = script.measure(entry("addcmul"), 1, 0)
    assert record["status"] == "wrong"
