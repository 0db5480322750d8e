"""Programs at random: one that ends its process is counted, and those after it are judged."""

from __future__ import annotations

import importlib
import os
import signal
from pathlib import Path

import pytest

from tests.backends.programs import program_check

pytestmark = pytest.mark.alternating

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
DEADLY = 2
"""The seed whose program ends the process."""


def judge_seed(seed: int, part: str, steps: object, shrinking: float) -> str:
    if seed == DEADLY:
        die()
    return "right"


def die(program: object = None) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(("eager_dies", "kind"), [(False, "wrong"), (True, "torch's")])
def test_a_program_that_ends_the_process(
    eager_dies: bool,
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    fuzz = importlib.import_module("fuzz")
    monkeypatch.setattr(fuzz, "judge_seed", judge_seed)
    monkeypatch.setattr(program_check, "run_eager", die if eager_dies else lambda program: None)
    assert fuzz.run(range(5), "operators", (5, 6), 1.0) == {"right": 4, kind: 1}
    told = capfd.readouterr().out
    assert f"# seed {DEADLY} is {kind}: the process ended with -9" in told
    assert ("def program(" in told) is not eager_dies
