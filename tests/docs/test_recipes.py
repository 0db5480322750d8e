"""Each recipe has a page and a program, and the program runs in ONNX Runtime as in eager mode."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from tests.gates.sources import ROOT

pytestmark = pytest.mark.alternating

RECIPES = ROOT / "docs" / "recipes"
PROGRAMS = sorted(RECIPES.glob("*.py"))
EXTRA = ("accelerate", "lightning", "peft")
"""Packages that only the environment of ``nox -s tests-recipes`` has."""

LAYERS = {"server": ("LayerNorm", 2)}
"""What each model of a program has in it, by how names of operators begin, and how often:
the layers, not only what is around them."""


def imported(program: Path) -> set[str]:
    """The packages that a program needs; transformers' Trainer is made of accelerate."""
    nodes = list(ast.walk(ast.parse(program.read_text(encoding="utf-8"))))
    sources = {
        n.module or "": {a.name for a in n.names} for n in nodes if isinstance(n, ast.ImportFrom)
    }
    plain = {a.name for n in nodes if isinstance(n, ast.Import) for a in n.names}
    hidden = {"accelerate"} if "Trainer" in sources.get("transformers", ()) else set()
    return {name.partition(".")[0] for name in {*sources, *plain}} | hidden


def commands(program: Path) -> list[list[str]]:
    """What the page says to type, by this Python."""
    page = program.with_suffix(".md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```bash\n(.*?)```", page, flags=re.DOTALL)
    runners = {
        "python": [sys.executable],
        "torchrun": [sys.executable, "-m", "torch.distributed.run"],
        "accelerate": [sys.executable, "-m", "accelerate.commands.accelerate_cli"],
    }
    lines = [line.split() for line in block.splitlines()]
    return [[*runners[words[0]], *words[1:]] for words in lines]


def runnable() -> list[object]:
    absent = [name for name in EXTRA if importlib.util.find_spec(name) is None]
    return [
        pytest.param(program, id=program.stem)
        for program in PROGRAMS
        if not imported(program) & set(absent)
    ]


def test_each_program_has_a_page() -> None:
    pages = {path.stem for path in RECIPES.glob("*.md")} - {"index"}
    assert pages == {path.stem for path in PROGRAMS}
    index = (RECIPES / "index.md").read_text(encoding="utf-8")
    for program in PROGRAMS:
        (row,) = re.findall(rf"\({program.name}\) \|(.*)\|$", index, flags=re.MULTILINE)
        assert set(re.findall(r"`(\w+)`", row)) == imported(program) & {*EXTRA, "transformers"}


@pytest.mark.load_sensitive
@pytest.mark.parametrize("program", runnable())
def test_the_program_runs_in_onnx_runtime(program: Path, tmp_path: Path) -> None:
    env = {
        **os.environ,
        "DORT_CACHE_DIR": str(tmp_path / "cache"),
        "HF_HUB_OFFLINE": "1",
        "ONNXRT_CHANGE_REWRITER": "1",
        "PYTHONPATH": str(ROOT),
        "TORCH_LOGS": "dort_rewriter",
    }
    kind, count = LAYERS.get(program.stem, ("", 0))
    if count:
        env["ONNXRT_DUMP_PATH"] = str(tmp_path / "model")
    for command in commands(program):
        done = subprocess.run(
            command, cwd=RECIPES, env=env, capture_output=True, text=True, check=False, timeout=500
        )
        assert done.returncode == 0, done.stderr[-4000:]
        assert "is a model of" in done.stderr, "nothing ran in ONNX Runtime"
    models = [onnx.load(path) for path in tmp_path.glob("model*.onnx")]
    assert len(models) >= 2 or not count
    for model in models:
        assert sum(node.op_type.startswith(kind) for node in model.graph.node) == count
