"""What happened while one graph was compiled: its phases (CompileTrace) and passes.

A pass has a name and a place in an order that is written down. A graph carries the record of those
that it went through, see :func:`passes_of`: what comes later asks it in place of doing the work
again, and ``explain --passes`` prints it.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import torch

from dort_rewriter.progress import shown

_hidden = contextlib.nullcontext[Callable[[], object]](bool)


@dataclass
class CompileTrace:
    """One compilation, from the captured graph to its sessions."""

    reports: list[Any] = field(default_factory=list)
    """What the optimizer did to each of them."""
    plans: list[Any] = field(default_factory=list)
    """Who computes each node of the graph; more than one where it was planned again."""
    failures: list[str] = field(default_factory=list)
    """Why graphs that are convertible run in torch all the same: what their sessions refused."""
    timings: dict[str, float] = field(default_factory=dict)
    """Seconds per phase; phases that run several times are added up."""

    number: int = field(default_factory=itertools.count(1).__next__)
    """Which compilation of the process it is."""
    verbose: bool = False
    """Whether the program asked to see what is done."""

    @contextlib.contextmanager
    def phase(self, name: str, steps: int = 1) -> Iterator[Callable[[], object]]:
        """Add the time spent in the block to ``timings[name]``, and show that it is at work.

        The block may call what it is given after each of its steps; one without is not shown.
        """
        start = time.perf_counter()
        what, since = f"Graph {self.number}: {name}", sum(self.timings.values())
        showing = shown(what, steps=steps, asked=self.verbose, since=since) if steps else _hidden
        try:
            with showing as advance:
                yield advance
        finally:
            spent = time.perf_counter() - start
            self.timings[name] = self.timings.get(name, 0.0) + spent


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
    applies: Callable[[Subject], bool] | None = None
    """A cheap test; None for a pass that always does."""


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
        applies = step.applies is None or step.applies(subject)
        changed = step.run(subject) if applies else None
        record.append(PassRun(step.name, step.sentence, changed, time.perf_counter() - start))


def passes_of(graph_module: torch.fx.GraphModule) -> list[PassRun]:
    """The passes that a graph went through, oldest first; to be added to."""
    return graph_module.meta.setdefault(_RECORD, [])


def went_through(graph_module: torch.fx.GraphModule, name: str) -> bool:
    """Whether a graph went through a pass of a name."""
    return any(run.name == name for run in passes_of(graph_module))
