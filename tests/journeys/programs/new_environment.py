"""The backend is found by its name, in what was installed, and the tools run."""

import subprocess
import sys
from pathlib import Path

import torch

model = torch.nn.Sequential(torch.nn.Linear(10, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
compiled = torch.compile(model, backend="onnxrt")  # nothing is imported for it
x = torch.randn(4, 10)
if int(torch.__version__.split(".")[1]) >= 9:  # older ones have a backend of that name
    torch.testing.assert_close(compiled(x), model(x))

import dort_rewriter  # noqa: E402

assert Path(sys.prefix) in Path(dort_rewriter.__file__).parents, dort_rewriter.__file__
tool = Path(sys.prefix) / "bin" / "dort-rewriter"
for command in (["doctor"], ["status"], ["--version"]):
    subprocess.run([tool, *command], check=True, capture_output=True)
print("new_environment: done")
