"""What the judge of the zoo calls noise, and what wrong: draws of models moved by a rounding."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.alternating

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


def verdict_of(
    monkeypatch: pytest.MonkeyPatch,
    jumps_of_eager: set[int],
    jumps_of_ours: set[int],
    in_float64: bool = True,
) -> str:
    """What becomes of a gradient that is far off in some draws."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    zoo_check = importlib.import_module("zoo_check")

    def run(
        _: Any, way: str, backend: str | None, dtype: Any = None, moved_by: int = 0, **more: Any
    ) -> dict[str, Any]:
        if dtype is not None and not in_float64:
            raise RuntimeError("a product of float64 is not implemented")
        jumps = jumps_of_ours if backend else jumps_of_eager
        value = 1.0 if dtype is not None else 1.3 if moved_by in jumps else 1.0001
        return {"gradient of w": torch.full((3,), value)}

    monkeypatch.setattr(zoo_check, "run", run)
    subject: Any = None
    outcome = zoo_check.Outcome()
    got, expected = run(subject, "training", "onnxrt"), run(subject, "training", None)
    zoo_check.judge(outcome, subject, "training", got, expected)
    return str(outcome.status)


@pytest.mark.parametrize(
    ("eager", "ours", "status"),
    [
        (set(), set(), "right"),
        ({2}, {0}, "right"),
        ({9}, {0}, "right"),  # a kink that eager mode crosses in a late draw
        (set(), {0}, "wrong"),  # eager mode crosses none
        (set(), set(range(13)), "wrong"),
    ],
)
def test_what_is_far_off_in_some_draws(
    monkeypatch: pytest.MonkeyPatch, eager: set[int], ours: set[int], status: str
) -> None:
    assert verdict_of(monkeypatch, eager, ours) == status


@pytest.mark.parametrize(("eager", "status"), [(set(), "wrong"), ({2}, "right"), ({9}, "right")])
def test_what_does_not_run_in_float64(
    monkeypatch: pytest.MonkeyPatch, eager: set[int], status: str
) -> None:
    """Eager mode whose numbers are moved by a rounding says how far off is noise."""
    assert verdict_of(monkeypatch, eager, {0}, in_float64=False) == status


@pytest.mark.parametrize(
    ("ours", "traced", "status"),
    [
        (torch.zeros(3), torch.zeros(3), "right"),
        (torch.zeros(3), None, "wrong"),
        (torch.tensor([0.0, 1.0]), torch.zeros(2), "wrong"),
        (torch.tensor([0.0, float("nan")]), torch.zeros(2), "wrong"),
    ],
)
def test_a_gradient_that_eager_mode_does_not_make_is_zero_if_torch_gives_that(
    monkeypatch: pytest.MonkeyPatch, ours: torch.Tensor, traced: torch.Tensor | None, status: str
) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    zoo_check = importlib.import_module("zoo_check")
    read = {"gradient of read": torch.ones(3)}
    monkeypatch.setattr(zoo_check, "run", lambda *_: {**read, "gradient of w": traced})
    got, expected = {**read, "gradient of w": ours}, {**read, "gradient of w": None}
    outcome = zoo_check.Outcome()
    subject: Any = None
    zoo_check.judge(outcome, subject, "training", got, expected)
    assert outcome.status == status
