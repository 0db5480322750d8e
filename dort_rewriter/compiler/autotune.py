"""Try several ways to run a graph on its real arguments, and keep the fastest.

Each of the first calls runs one candidate and times it: results are results, whoever computed
them. What was slower is forgotten, with its sessions.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from dort_rewriter.forks import SafeLock
from dort_rewriter.plan.graph_plan import describe_times
from dort_rewriter.plan.recipe import RunBoxed

logger = logging.getLogger(__name__)

MEASURES = 3
"""Timed calls of each candidate, after one that is not: it builds sessions."""


class Autotuned:
    """Candidates to run one graph."""

    def __init__(
        self,
        candidates: Mapping[str, RunBoxed],
        record: Callable[[Mapping[str, float]], None] = lambda _: None,
    ) -> None:
        """Try candidates; ``record`` is called with the seconds of each once all are known."""
        self._candidates = dict(candidates)
        self._record = record
        self._seconds: dict[str, list[float]] = {name: [] for name in candidates}
        self._calls = 0
        self._lock = SafeLock()
        self._trying = False
        self._chosen: RunBoxed | None = None
        self.choice: str | None = None
        """The name of the fastest, once it is known."""

    def boxed(self, args: list[Any]) -> Any:
        """Run the graph on a list of arguments, which is emptied."""
        if self._chosen is None:
            with self._lock:  # one at a time: two would slow each other down
                if self._trying:  # a candidate, or what interrupts it, calls the graph again
                    return next(iter(self._candidates.values()))(args)
                if self._chosen is None:
                    return self._try_next(args)
        return self._chosen(args)

    def _try_next(self, args: list[Any]) -> Any:
        names = list(self._candidates)
        name = names[self._calls % len(names)]
        wait = _device_wait(args)
        wait()
        self._trying = True
        try:
            start = time.perf_counter()
            results = self._candidates[name](args)
            wait()
            seconds = time.perf_counter() - start
        finally:
            self._trying = False
        if self._calls >= len(names):
            self._seconds[name].append(seconds)
        self._calls += 1
        if self._calls == len(names) * (1 + MEASURES):
            self._choose()
        return results

    def _choose(self) -> None:
        medians = {name: statistics.median(v) for name, v in self._seconds.items()}
        self.choice = min(medians, key=medians.__getitem__)
        self._chosen = self._candidates[self.choice]
        self._candidates.clear()
        self._record(medians)
        logger.info("A graph runs from now on in %s", describe_times(medians))


def _device_wait(args: list[Any]) -> Callable[[], None]:
    """What waits for a device to finish: its calls return before their work is done."""
    devices = {a.device for a in args if isinstance(a, torch.Tensor) and a.device.type == "cuda"}

    def wait() -> None:
        for device in devices:
            torch.cuda.synchronize(device)

    return wait
