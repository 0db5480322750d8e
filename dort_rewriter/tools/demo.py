"""The demonstration: one model trained in eager mode, by Inductor and by ONNX Runtime.

Each step runs on all of them before the next: they share what else the machine is doing.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from dort_rewriter import env
from dort_rewriter.tools.command import brief
from dort_rewriter.tools.dumps import dump_onnx

__all__ = ["BACKENDS", "Competitor", "DemoResult", "make_data", "make_model", "run_demo"]

BACKENDS = ("eager", "inductor", "onnxrt")
PREFIX = "demo"

SURE_STEPS = 5
"""Steps that are made whatever time they take."""

Progress = Callable[[Iterable[int]], Iterable[int]]


@dataclass(kw_only=True)
class Competitor:
    """One way to run the model, and what it did."""

    backend: str
    model: Any = field(repr=False)
    optimizer: torch.optim.Optimizer = field(repr=False)
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    failure: str = ""
    """Why it stopped; an empty text when it did not."""

    @property
    def first(self) -> float:
        """Seconds of the first step, compilation included."""
        return self.seconds[0] if self.seconds else float("nan")

    @property
    def usual(self) -> float:
        """Seconds of a step: the median without the first ones, which compile and allocate."""
        later = self.seconds[min(3, len(self.seconds) - 1) :]
        return statistics.median(later) if later else float("nan")


@dataclass(frozen=True, kw_only=True)
class DemoResult:
    """What a demonstration measured and wrote."""

    competitors: tuple[Competitor, ...]
    files: tuple[Path, ...]
    """The models and the texts of their graphs, forward then backward."""

    @property
    def eager(self) -> Competitor:
        """The run that the others are compared with."""
        return next(c for c in self.competitors if c.backend == "eager")

    def worst(self, competitor: Competitor) -> float:
        """How far a curve is from that of eager mode, in units of the highest loss.

        Not of each loss: rounding adds up over the steps, while the losses fall.
        """
        if competitor.failure or not competitor.losses:
            return float("inf")
        expected = self.eager.losses
        pairs = zip(expected, competitor.losses, strict=True)
        return max(abs(a - b) for a, b in pairs) / max(map(abs, expected))


def run_demo(
    folder: Path,
    *,
    backends: Sequence[str] = BACKENDS,
    steps: int = 80,
    hidden: int = 192,
    batch: int = 256,
    seconds: float = float("inf"),
    progress: Progress = lambda steps: steps,
) -> DemoResult:
    """Train copies of one model on the same data; write the exported graphs to ``folder``.

    No step starts after ``seconds``, but the first ones do: a busy machine must not take all day.
    """
    torch.manual_seed(0)
    model = make_model(hidden)
    competitors = [_make_competitor(name, model) for name in dict.fromkeys(["eager", *backends])]
    data, target = make_data(batch)
    with (
        env.temporarily("ONNXRT_CHANGE_REWRITER", "1"),
        dump_onnx(PREFIX, folder=folder, clean=True) as files,
    ):
        end = time.perf_counter() + seconds
        for step in progress(range(steps)):
            if step >= SURE_STEPS and time.perf_counter() > end:
                break
            for competitor in competitors:
                _train_one_step(competitor, data, target)
    return DemoResult(competitors=tuple(competitors), files=tuple(files))


def make_model(hidden: int) -> torch.nn.Module:
    """The network of the demonstration, which takes 16 numbers a row."""
    return torch.nn.Sequential(
        torch.nn.Linear(16, hidden),
        torch.nn.LayerNorm(hidden),
        torch.nn.GELU(),
        torch.nn.Linear(hidden, hidden),
        torch.nn.GELU(),
        torch.nn.Linear(hidden, 1),
    )


def make_data(batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch and what it is to learn."""
    data = torch.randn(batch, 16)
    target = torch.sin(2 * data[:, :1]) + data[:, 1:2] * data[:, 2:3]
    return data, target


def _make_competitor(backend: str, model: torch.nn.Module) -> Competitor:
    twin = copy.deepcopy(model)
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.03, momentum=0.9)
    compiled = twin if backend == "eager" else torch.compile(twin, backend=backend)
    return Competitor(backend=backend, model=compiled, optimizer=optimizer)


def _train_one_step(competitor: Competitor, data: torch.Tensor, target: torch.Tensor) -> None:
    if competitor.failure:
        return
    start = time.perf_counter()
    try:
        competitor.optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(competitor.model(data), target)
        loss.backward()
        competitor.optimizer.step()
    except Exception as error:  # a compiler may be missing: the others go on, the table says why
        competitor.failure = brief(error)
        return
    competitor.seconds.append(time.perf_counter() - start)
    competitor.losses.append(float(loss.detach()))
