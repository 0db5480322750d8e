"""Each test of a backend starts from a torch that has compiled nothing."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from dort_rewriter import OrtBackend, installed
from tests.backends.ways import backend_class


@pytest.fixture(autouse=True)
def onnxrt(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Turn the hook on where there is something to hook, and forget what other tests made."""
    monkeypatch.setenv("ONNXRT_CHANGE_REWRITER", "1")
    # Dynamo times the guards of each new graph, for its log, with the processor's caches flushed.
    monkeypatch.setattr(torch._dynamo.guards, "profile_guard_manager", lambda *_: 0.0)
    torch.manual_seed(0)
    with installed():
        _forget()
        yield
        _forget()


@pytest.fixture
def dumped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the models are written."""
    monkeypatch.setenv("ONNXRT_DUMP_PATH", str(tmp_path / "model"))
    return tmp_path


@pytest.fixture
def silent(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fail a test in which the package logs a warning; those of Python are errors anyway."""
    yield
    ours = [r for r in caplog.get_records("call") if r.name.startswith("dort_rewriter")]
    assert [r.getMessage() for r in ours if r.levelno >= logging.WARNING] == []


def _forget() -> None:
    torch._dynamo.reset()
    OrtBackend.clear_cached_instances()
    backend_class().clear_cached_instances()
