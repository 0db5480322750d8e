"""Each test of a backend starts from a torch that has compiled nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from dort_rewriter import OrtBackend, installed


@pytest.fixture(autouse=True)
def onnxrt(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Turn the hook on where there is something to hook, and forget what other tests made."""
    monkeypatch.setenv("ONNXRT_CHANGE_REWRITER", "1")
    torch._dynamo.reset()
    OrtBackend.clear_cached_instances()
    torch.manual_seed(0)
    with installed():
        yield
    torch._dynamo.reset()
    OrtBackend.clear_cached_instances()
