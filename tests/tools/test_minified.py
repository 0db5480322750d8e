"""torch's minifier with the backend: it writes a script, which finds the node that is to blame."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.alternating

PLANTED = """
def refuse_erf(model):
    if any(n.op_type == "Erf" for n in model.graph.node):
        raise ValueError("planted: an Erf")

def swap_erf(model):
    for node in model.graph.node:
        if node.op_type == "Erf":
            node.op_type = "Sin"
"""
PROGRAM = """
import sys
import torch
import dort_rewriter
import planted

dort_rewriter.install()
options = {"fallback": False, "cache": False, "optimization": {"patterns": "default"},
           "pre_ort_model_transforms": [getattr(planted, sys.argv[1])]}

@torch.compile(backend="onnxrt", options=options, dynamic=sys.argv[2] == "dynamic")
def program(x, w):
    y = torch.sigmoid(x @ w).mul(3)
    y = y * torch.erf(y.exp() + 1)
    return torch.tanh(y + x.sum(1, keepdim=True)), y.cos()

x, w = torch.randn(4, 8), torch.randn(8, 8, requires_grad=sys.argv[2] == "training")
program(x, w)
"""
ROOT = Path(__file__).resolve().parents[2]


def run(folder: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a Python script in a folder."""
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={
            **{k: v for k, v in os.environ.items() if not k.startswith("TORCHDYNAMO")},
            "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]),
            "ONNXRT_CHANGE_REWRITER": "1",
            **environment,
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


def operators(script: Path) -> list[str]:
    return re.findall(r"torch\.ops\.(aten\.\w+)", script.read_text())


@pytest.mark.parametrize(
    ("level", "plant", "how", "error"),
    [
        ("2", "refuse_erf", "dynamic", "planted: an Erf"),
        ("4", "swap_erf", "training", "AccuracyError"),
    ],
)
def test_after_aot(tmp_path: Path, level: str, plant: str, how: str, error: str) -> None:
    (tmp_path / "planted.py").write_text(PLANTED)
    (tmp_path / "program.py").write_text(PROGRAM)
    asked = {"TORCHDYNAMO_REPRO_AFTER": "aot", "TORCHDYNAMO_REPRO_LEVEL": level}
    failed = run(tmp_path, "program.py", plant, how, **asked)
    assert error in failed.stderr, failed.stderr
    (launcher,) = tmp_path.glob("torch_compile_debug/*/minifier/minifier_launcher.py")
    minified = run(tmp_path, str(launcher), "minify", "--no-isolate")
    assert minified.returncode == 0, minified.stderr
    script = tmp_path / "repro.py"
    assert operators(script) == ["aten.erf"]
    reproduced = run(tmp_path, str(script))
    assert reproduced.returncode == 1
    assert error in reproduced.stderr
