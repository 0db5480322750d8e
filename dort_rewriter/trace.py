"""CompileTrace: what happened while one graph was compiled, for people and tools to look at."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from dort_rewriter.progress import shown

__all__ = ["CompileTrace"]


_hidden = contextlib.nullcontext[Callable[[], object]](lambda: None)


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
