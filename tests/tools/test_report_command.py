"""``dort-rewriter report``: a program runs, and what failed is packed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gates.sources import ROOT

pytestmark = pytest.mark.alternating

PROGRAM = """
import sys
import torch

def break_it(model):
    node = model.graph.node[0]
    if sys.argv[1] == "invalid":
        node.input[0] = "nothing"
    else:
        node.op_type = sys.argv[1]

options = {"pre_ort_model_transforms": [break_it], "optimization": {"patterns": None}}
function = torch.linalg.pinv if sys.argv[1] == "unsupported" else lambda x: x.exp() * 2
compiled = torch.compile(function, backend="onnxrt", options=options)
with torch.no_grad():
    print(compiled(torch.zeros(2, 3)).sum().item())
"""


def report(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = folder / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "dort_rewriter.tools.cli", "report", "--folder",
               str(folder / "found"), *arguments[:-1], str(program), arguments[-1]]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)


@pytest.fixture(autouse=True)
def hooked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONNXRT_CHANGE_REWRITER", "1")


def test_a_graph_that_falls_back_is_packed(tmp_path: Path) -> None:
    done = report(tmp_path, "--json", "invalid")
    assert done.returncode == 1, done.stderr
    assert "12.0\n" in done.stderr  # in torch
    (folder,) = map(Path, json.loads(done.stdout)["folders"])
    assert "nothing" in json.loads((folder / "problem.json").read_text())["problem"]
    run = [sys.executable, str(folder / "reproduce.py")]
    again = subprocess.run(run, capture_output=True, text=True, cwd=ROOT, check=False)
    # The model was broken by hand: made again, it is right.
    assert again.stdout == "Both ways give the same.\n", again.stderr


def test_wrong_numbers_are_packed_when_asked_for(tmp_path: Path) -> None:
    done = report(tmp_path, "--verify", "Sin")
    assert done.returncode == 1, done.stderr
    assert "1 graph(s) written." in done.stdout
    assert "does not give what torch gives" in done.stdout


def test_what_cannot_be_written_is_counted(tmp_path: Path) -> None:
    (tmp_path / "found").write_text("no folder")
    done = report(tmp_path, "invalid")
    assert done.returncode == 1, done.stderr
    assert "cannot be written to" in done.stderr
    number, problem, last = done.stdout.splitlines()
    assert (number, last) == ("12.0", "0 graph(s) written.")
    assert problem.startswith("not written: ")


@pytest.mark.parametrize("what", ["Exp", "unsupported"])
def test_nothing_is_written_about_a_program_that_runs(what: str, tmp_path: Path) -> None:
    done = report(tmp_path, what)
    assert done.returncode == 0, done.stderr
    assert ("A graph runs in torch as a whole" in done.stderr) == (what == "unsupported")
    number, said = done.stdout.splitlines()
    assert number == ("12.0" if what == "Exp" else "0.0")
    assert said.startswith("No graph was written: each model could be built and run.")
    assert not (tmp_path / "found").exists()
