"""Each test of a backend starts from a torch that has compiled nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from dort_rewriter import OrtBackend, installed
from tests.backends.ways import backend_class


@pytest.fixture(autouse=True)
def onnxrt(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Turn the hook on where there is something to hook, and forget what other tests made."""
    monkeypatch.setenv("ONNXRT_CHANGE_REWRITER", "1")
    torch.manual_seed(0)
    with installed():
        _forget()
        yield
        _forget()


def _forget() -> None:
    torch._dynamo.reset()
    OrtBackend.clear_cached_instances()
    backend_class().clear_cached_instances()
