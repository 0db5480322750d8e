"""Train and serve for a long time, and see that nothing grows and nothing fails.

usage: python scripts/soak.py [--minutes 30] [--threads 8] [--backend NAME] [--json FILE]
                              [--torch FILE]

Rounds of work follow each other: requests of varying shapes from several threads, training steps,
new models, a forked child that calls the models, ``torch._dynamo.reset()``. Memory, threads, open
descriptors and files are counted at the end of each round. The first third of the time is for
warming up; after it nothing may grow: memory by 2 % at most. NOTE: memory is that in use: what the
allocator holds free is given back before it is read, and what torch keeps of each compilation in
spite of the reset is dropped (1.8 MB a round with every backend: see ``forget``). What it keeps
besides is measured with ``--backend aot_eager --json FILE`` and taken off with ``--torch FILE``.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import linecache
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
import weakref
from collections import Counter
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._dynamo.guards import CheckFunctionManager
from torch._dynamo.utils import get_metrics_context
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import graph_module
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from dort_rewriter import OrtBackend

GROWTH = 0.02
"""How much of its memory the process may gain after the warm-up."""
CHILD_LIMIT = 300.0
"""Seconds after which a forked child counts as one that hangs."""


@dataclass(frozen=True)
class Sample:
    """What the process has at one moment."""

    minutes: float
    rss_mb: float
    threads: int
    descriptors: int
    files: int


def forget() -> None:
    """Drop what torch keeps of compilations after ``torch._dynamo.reset()``, for ever."""
    FakeTensorMode.cache_clear()
    for method in vars(ShapeEnv).values():
        if hasattr(method, "cache_clear"):  # some have no limit, and hold what they are called on
            method.cache_clear()
    for found in gc.get_objects():
        if type(found) is ShapeEnv:  # its tensors' sizes hold it, where Python's gc cannot look
            found.tracked_fakes = None
    for finalizer, info in list(weakref.finalize._registry.items()):
        function = getattr(info.func, "func", None)
        if isinstance(getattr(function, "__self__", None), CheckFunctionManager):
            finalizer.detach()  # of modules and types, which live as long as the process
    vars(get_metrics_context()).get("_edits", []).clear()  # 15 tracebacks a round, since 2.13
    graph_module._loader.eval_cache.clear()
    linecache.clearcache()


def sample(start: float) -> Sample:
    forget()
    gc.collect()
    if hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    left = list(Path(tempfile.gettempdir()).glob("*dort-*"))
    return Sample(
        minutes=(time.monotonic() - start) / 60,
        rss_mb=pages * os.sysconf("SC_PAGE_SIZE") / 2**20,
        threads=len(list(Path("/proc/self/task").iterdir())),
        descriptors=len(list(Path("/proc/self/fd").iterdir())),
        files=len(left),
    )


class Subject:
    """One model, compiled to serve and to train."""

    def __init__(self, width: int, backend: Any) -> None:
        self.width = width
        self.model = nn.Sequential(
            nn.Linear(width, 2 * width),
            nn.GELU(),
            nn.LayerNorm(2 * width),
            nn.Linear(2 * width, 8),
        )
        self.compiled = torch.compile(self.model, backend=backend, dynamic=True)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)

    def serve(self, rows: int) -> None:
        x = torch.randn(rows, self.width)
        with torch.no_grad():
            torch.testing.assert_close(self.compiled(x), self.model(x), rtol=1e-4, atol=1e-4)

    def train(self, rows: int) -> None:
        x = torch.randn(rows, self.width)
        self.optimizer.zero_grad()
        self.compiled(x).square().mean().backward()
        got = [p.grad.clone() for p in self.model.parameters() if p.grad is not None]
        self.optimizer.zero_grad()
        self.model(x).square().mean().backward()
        wanted = [p.grad for p in self.model.parameters()]
        torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-5)
        self.optimizer.step()


class Soak:
    """The work of all rounds, and what went wrong in it."""

    def __init__(self, threads: int, backend: str) -> None:
        self.threads = threads
        self.backend = backend
        self.done: Counter[str] = Counter()
        self.errors: list[str] = []
        self.lock = threading.Lock()

    def note(self, what: str, work: Any, *args: Any) -> None:
        """Do some work; keep its error, whichever it is: the run goes on."""
        try:
            work(*args)
        except Exception as error:  # reported at the end
            with self.lock:
                self.errors.append(f"{what}: {type(error).__name__}: {error}"[:400])
        with self.lock:
            self.done[what] += 1

    def round(self, number: int) -> None:
        backend = OrtBackend() if self.backend == "onnxrt" else self.backend
        subjects = [Subject(width, backend) for width in (16, 32 + 8 * (number % 4))]
        for subject in subjects:
            for rows in (2, 3, 5):
                self.note("training steps", subject.train, rows)
                self.note("requests", subject.serve, rows)
        workers = [
            threading.Thread(target=self._requests, args=(subjects, 97 * number + i))
            for i in range(self.threads)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        for rows in range(2, 22):
            self.note("training steps", subjects[rows % 2].train, rows)
        if number % 3 == 0:
            self.note("forks", self._fork, subjects)
        torch._dynamo.reset()
        self.done["resets"] += 1

    def _requests(self, subjects: list[Subject], seed: int) -> None:
        for i in range(25):
            rows = 2 + (seed * 31 + i * 17) % 200
            self.note("requests", subjects[i % len(subjects)].serve, rows)

    def _fork(self, subjects: list[Subject]) -> None:
        """Call the models in a child."""
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                for subject in subjects:
                    subject.serve(7)
                    subject.train(9)
                code = 0
            finally:
                os._exit(code)
        end = time.monotonic() + CHILD_LIMIT
        while time.monotonic() < end:
            found, status = os.waitpid(pid, os.WNOHANG)
            if found and status == 0:
                return
            if found:
                raise RuntimeError(f"a child ended with status {status}")
            time.sleep(0.02)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise RuntimeError("a child hung")


def growth(samples: list[Sample], minutes: float) -> float:
    """The megabytes that each round leaves behind after the warm-up."""
    warm = [s.rss_mb for s in samples if s.minutes >= minutes / 3]
    return statistics.linear_regression(range(len(warm)), warm).slope


def without(samples: list[Sample], per_round: float) -> list[Sample]:
    """The samples of a process that does not keep what torch does."""
    return [replace(s, rss_mb=s.rss_mb - i * per_round) for i, s in enumerate(samples)]


def verdict(samples: list[Sample], errors: list[str], minutes: float) -> list[str]:
    """What is not as it should be."""
    found = [f"{len(errors)} errors, the first: {errors[0]}"] if errors else []
    warm = [s for s in samples if s.minutes >= minutes / 3]
    if len(warm) < 4:
        return [*found, f"too few rounds after the warm-up: {len(warm)}"]
    half = len(warm) // 2
    for name in ("rss_mb", "threads", "descriptors", "files"):
        first = max(getattr(s, name) for s in warm[:half])
        last = max(getattr(s, name) for s in warm[half:])
        if last > first * (1 + (GROWTH if name == "rss_mb" else 0)):
            found.append(f"{name} grew from {first} to {last}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--threads", type=int, default=8, help="that send requests")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--backend", default="onnxrt")
    parser.add_argument("--torch", type=Path, help="the results of a run with aot_eager")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        tempfile.tempdir = folder  # what others leave beside it is not counted
        return run(arguments)


def run(arguments: argparse.Namespace) -> int:
    """Work for as long as asked, and tell what grew or failed."""
    of_torch = json.loads(arguments.torch.read_text())["mb_per_round"] if arguments.torch else 0.0
    soak = Soak(arguments.threads, arguments.backend)
    start, number = time.monotonic(), 0
    samples: list[Sample] = []
    while time.monotonic() - start < arguments.minutes * 60:
        soak.round(number)
        number += 1
        samples.append(sample(start))
        now = samples[-1]
        print(
            f"{now.minutes:6.1f} min {now.rss_mb:8.1f} MB {now.threads:3} threads "
            f"{now.descriptors:3} descriptors {now.files:3} files  {dict(soak.done)} "
            f"{len(soak.errors)} errors",
            flush=True,
        )
    found = verdict(without(samples, of_torch), soak.errors, arguments.minutes)
    per_round = growth(samples, arguments.minutes)
    print(f"{per_round:.3f} MB a round, of which {of_torch:.3f} are torch's.")
    if arguments.json:
        report = {
            "rounds": number,
            "done": soak.done,
            "errors": soak.errors,
            "found": found,
            "mb_per_round": per_round,
            "samples": [asdict(s) for s in samples],
        }
        arguments.json.write_text(json.dumps(report, indent=2))
    print("\n".join(found) or "Nothing grew, nothing failed.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
