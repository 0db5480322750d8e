"""Passes over an ATen graph: named, in an order that is written down, and recorded.

A graph carries the record of the passes that it went through, see :func:`passes_of`: what comes
later asks it in place of doing the work again, and ``explain --passes`` prints it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

__all__ = ["AtenPass", "PassRun", "passes_of", "run_passes", "went_through"]

Subject = TypeVar("Subject")

_RECORD = "dort_passes"


@dataclass(frozen=True)
class AtenPass(Generic[Subject]):
    """A step of the work on a graph."""

    name: str
    sentence: str
    """What holds behind it."""
    run: Callable[[Subject], int]
    """Does it, and returns how many nodes it changed, or decided on."""
    applies: Callable[[Subject], bool] = lambda _: True
    """A cheap test."""


@dataclass(frozen=True)
class PassRun:
    """What a pass did to a graph."""

    name: str
    sentence: str
    changed: int | None
    """None where it did not apply."""
    seconds: float


def run_passes(
    passes: Sequence[AtenPass[Subject]], subject: Subject, record: list[PassRun]
) -> None:
    """Run those that apply, in order."""
    for step in passes:
        start = time.perf_counter()
        changed = step.run(subject) if step.applies(subject) else None
        record.append(PassRun(step.name, step.sentence, changed, time.perf_counter() - start))


def passes_of(graph_module: torch.fx.GraphModule) -> list[PassRun]:
    """The passes that a graph went through, oldest first; to be added to."""
    record: list[PassRun] = graph_module.meta.setdefault(_RECORD, [])
    return record


def went_through(graph_module: torch.fx.GraphModule, name: str) -> bool:
    """Whether a graph went through a pass of a name."""
    return any(run.name == name for run in passes_of(graph_module))
