"""The demonstration: one model in eager mode, by Inductor and by ONNX Runtime.

Each backend has a process; each step runs in all of them before the next.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from dort_rewriter import env
from dort_rewriter.tools import demo_worker
from dort_rewriter.tools.demo_model import Size
from dort_rewriter.tools.machine import busy

BACKENDS = ("eager", "inductor", "onnxrt")
MODES = ("inference", "training")

SURE_STEPS = 5
"""Steps that are made whatever time they take."""

Progress = Callable[[Sequence[int]], Iterable[int]]


@dataclass(kw_only=True)
class Times:
    """The seconds of the calls of one kind, the first one compiles."""

    seconds: list[float] = field(default_factory=list)

    @property
    def first(self) -> float:
        """Seconds of the first call, compilation included."""
        return self.seconds[0] if self.seconds else float("nan")

    @property
    def usual(self) -> float:
        """Seconds of a call: the median without the first ones, which compile and allocate."""
        later = self.seconds[min(3, len(self.seconds) - 1) :]
        return statistics.median(later) if later else float("nan")


def catches_up(ahead: Times, behind: Times) -> int | None:
    """The number of steps after which who began later has made as many; None if that never is."""
    late, gained = behind.first - ahead.first, ahead.usual - behind.usual
    if late <= 0:
        return 1
    return math.ceil(1 + late / gained) if gained > 0 else None


def processor() -> str:
    """What the processor is called, and how many threads compute."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # another system than Linux
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    name = next(names, "") or platform.processor() or platform.machine()
    return f"{name}, {torch.get_num_threads()} thread(s)"


@dataclass(kw_only=True)
class Competitor:
    """One way to run the model, and what it did."""

    backend: str
    inference: Times = field(default_factory=Times)
    training: Times = field(default_factory=Times)
    losses: list[float] = field(default_factory=list)
    megabytes: float | None = None
    """The peak of its process during a training step; None where the system does not say."""
    failure: str = ""
    """Why it stopped; an empty text when it did not."""

    def times(self, mode: str) -> Times:
        """The times of one of :data:`MODES`."""
        return self.inference if mode == "inference" else self.training


@dataclass(frozen=True, kw_only=True)
class DemoResult:
    """What a demonstration measured and wrote."""

    size: Size
    competitors: tuple[Competitor, ...]
    files: tuple[Path, ...]
    """The models and the texts of their graphs, forward then backward."""
    busy: str = ""
    """Why the times say little; an empty text where nothing speaks against them."""

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


def demonstrate(
    folder: Path,
    *,
    backends: Sequence[str] = BACKENDS,
    steps: int = 40,
    size: Size | None = None,
    seconds: float = float("inf"),
    progress: Progress = lambda steps: steps,
) -> DemoResult:
    """Train the same model on the same data; write the exported graphs to ``folder``.

    No step starts after ``seconds`` of steps, but the first ones do: a busy machine must not take
    all day.
    """
    size = size or Size()
    others = busy(torch.get_num_threads())  # before there is any work of ours
    with contextlib.ExitStack() as stack:
        empty = stack.enter_context(tempfile.TemporaryDirectory())
        # First results are those of a new model: what an earlier run left is not used.
        variables = env.extended(
            ONNXRT_CHANGE_REWRITER="1", DORT_CACHE="0", TORCHINDUCTOR_CACHE_DIR=empty
        )
        players = [
            stack.enter_context(_started(name, size, folder, variables))
            for name in dict.fromkeys(["eager", *backends])
        ]
        for player in players:  # one after the other: each compiles alone
            player.run("inference")
            player.run("training")
        _take_turns(players, steps, seconds, progress)
        for player in players:
            player.weigh()
    return DemoResult(
        size=size,
        competitors=tuple(player.competitor for player in players),
        files=tuple(file for player in players for file in player.files),
        busy=others,
    )


def _take_turns(
    players: Sequence[_Player], steps: int, seconds: float, progress: Progress
) -> None:
    """Make the steps after the first, and as many calls without gradients."""
    end = time.perf_counter() + seconds
    for step in progress(range(1, steps)):
        if step >= SURE_STEPS and time.perf_counter() > end:
            break
        for mode in MODES:
            for player in players:
                player.run(mode)


class _Player:
    """A competitor and the process in which it runs."""

    def __init__(self, backend: str, process: subprocess.Popen[str]) -> None:
        self.competitor = Competitor(backend=backend)
        self.files: list[Path] = []
        self._process = process

    def run(self, mode: str) -> None:
        """Make one call."""
        answer = self.ask(mode)
        if "seconds" not in answer:
            return
        self.competitor.times(mode).seconds.append(answer["seconds"])
        if mode == "training":
            self.competitor.losses.append(answer["loss"])
            self.files += map(Path, answer["files"])

    def weigh(self) -> None:
        """Find out how much memory a step takes."""
        self.competitor.megabytes = self.ask("memory").get("megabytes")

    def ask(self, question: Any) -> dict[str, Any]:
        """The answer of the process, empty once something has failed."""
        if self.competitor.failure:
            return {}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
            with contextlib.suppress(BrokenPipeError):  # what it did not read cannot be written
                self._process.stdin.close()
        answer: dict[str, Any] = json.loads(line) if line else {"failure": "Its process ended."}
        self.competitor.failure = answer.get("failure", "")
        return answer


@contextlib.contextmanager
def _started(
    backend: str, size: Size, folder: Path, variables: dict[str, str]
) -> Iterator[_Player]:
    """A process that has loaded torch and made the model."""
    command = [sys.executable, "-m", demo_worker.__name__]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables
    ) as process:
        player = _Player(backend, process)
        dumps = str(folder) if backend == "onnxrt" else None
        player.ask({"backend": backend, "size": dataclasses.asdict(size), "folder": dumps})
        try:
            yield player
        except BaseException:  # an interruption as well
            process.kill()
            raise
