"""``torch.compile(backend="onnxrt")`` by name, on a torch that has no such backend itself."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

PROGRAM = """
import torch

model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU())
x = torch.randn(2, 4)
compiled = torch.compile(model, backend="onnxrt", options={"fallback": False})
compiled(x).sum().backward()
got = [p.grad.clone() for p in model.parameters()]
model.zero_grad()
model(x).sum().backward()
for a, p in zip(got, model.parameters()):
    torch.testing.assert_close(a, p.grad)
from dort_rewriter import OrtBackend
(backend,) = OrtBackend.get_cached_instances()
print("runs", backend.execution_count)
"""

BUILT_IN = tuple(map(int, torch.__version__.split(".")[:2])) <= (2, 8)


@pytest.mark.load_sensitive
@pytest.mark.skipif(BUILT_IN, reason="this torch has its own backend of that name")
def test_found_by_name_and_trains() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "runs 2" in done.stdout
    assert "arning" not in done.stderr
