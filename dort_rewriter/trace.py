"""CompileTrace: what happened while one graph was compiled, for people and tools to look at."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

__all__ = ["CompileTrace"]


@dataclass
class CompileTrace:
    """One compilation, from the captured graph to its sessions."""

    fx_text: str = ""
    """The captured graph as text, before partitioning."""
    models: list[Any] = field(default_factory=list)
    """The exported models (``onnx_ir.Model``), in the order of the partitions."""
    reports: list[Any] = field(default_factory=list)
    """What the optimizer did to each of them."""
    fallbacks: list[Any] = field(default_factory=list)
    """The operators left to torch (:class:`~dort_rewriter.errors.UnsupportedOp`)."""
    failures: list[str] = field(default_factory=list)
    """Why graphs that are convertible run in torch all the same: what their sessions refused."""
    timings: dict[str, float] = field(default_factory=dict)
    """Seconds per phase; phases that run several times are added up."""

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time spent in the block to ``timings[name]``."""
        start = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - start
            self.timings[name] = self.timings.get(name, 0.0) + spent
