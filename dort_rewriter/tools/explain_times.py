"""Where the time of a compiled model goes: of its first call by phase, of later ones by part.

A call is timed as it is; which kernels it is made of comes from calls of its own, through sessions
that write a profile, which costs some microseconds for each node.
"""

from __future__ import annotations

import dataclasses
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dort_rewriter.compiler.building import build_session, make_executor
from dort_rewriter.options import OrtBackendOptions
from dort_rewriter.plan.recipe import BuiltBlock, RunBoxed
from dort_rewriter.runtime.executor import Executor
from dort_rewriter.runtime.profiling import (
    ProfiledRun,
    profiling,
    read_profile,
    source_of,
    sources_of,
)
from dort_rewriter.runtime.session import Session
from dort_rewriter.runtime.session_settings import session_settings
from dort_rewriter.trace import CompileTrace

__all__ = ["KernelTime", "Stopwatch", "Times", "measure"]

WARM_UP = 2
CALLS = 7
"""The least number of calls that are timed, of each kind."""
SECONDS = 0.5
"""More are timed until they took so long."""
MOST_CALLS = 200
SHOWN = 20
"""The kernels in the text; all are in the data."""

MOVING = frozenset(
    [
        *("Cast", "Concat", "Expand", "Flatten", "Identity", "MemcpyFromHost", "MemcpyToHost"),
        *("Reshape", "Slice", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze"),
    ]
)
"""The operators that compute nothing: they copy or convert."""

PHASES = {
    "torch": "torch: Dynamo, AOTAutograd",
    "cut": "choosing what runs in ONNX Runtime",
    "export": "exporting",
    "optimize": "optimizing",
    "session": "building sessions",
    "run": "running",
}
PARTS = {
    "kernels": "kernels of ONNX Runtime",
    "session": "ONNX Runtime around its kernels",
    "boundaries": "boundaries: tensors in and out",
    "torch": "operators in torch",
    "around": "around the graphs: guards, autograd, Python",
}


@dataclass(frozen=True, kw_only=True)
class KernelTime:
    """The kernels of an operator that come from one Python line."""

    op: str
    where: str
    """The Python line; empty for what ONNX Runtime added of its own."""
    seconds: float
    """In one call of the model."""
    runs: int
    """How often they run in one call."""


@dataclass(frozen=True, kw_only=True)
class Times:
    """Where the time goes, in seconds."""

    eager: float
    """A call in eager mode: the median."""
    call: float
    """A call of the compiled model: the median."""
    calls: int
    """How many calls of each were timed."""
    parts: dict[str, float]
    """What the call is made of."""
    copies: float
    """What the kernels that only copy or convert take of it."""
    copied_arguments: int
    """How many tensors a call copies before a session can read them."""
    kernels: tuple[KernelTime, ...]
    """The slowest first."""
    first_call: float
    phases: dict[str, float]
    """What the first call is made of."""

    def __str__(self) -> str:
        lines = [
            f"a call: {_ms(self.call)} ms, {_ms(self.eager)} ms in eager mode "
            f"(medians of {self.calls})"
        ]
        lines.extend(_table(self.parts, PARTS, self.call))
        lines.append(f"of the kernels, those that copy or convert: {_ms(self.copies)} ms")
        if self.copied_arguments:
            lines.append(f"copied before a session can read them: {self.copied_arguments} tensors")
        lines.append(f"the first call: {_ms(self.first_call)} ms")
        lines.extend(_table(self.phases, PHASES, self.first_call))
        total = sum(k.seconds for k in self.kernels)
        lines.append(f"kernels: {_ms(total)} ms a call, under the profiler of ONNX Runtime")
        lines.extend(
            f"  {_ms(k.seconds):>9} ms {_share(k.seconds, total)} {k.runs:4} x {k.op}"
            f"{f' at {k.where}' if k.where else ''}"
            for k in self.kernels[:SHOWN]
        )
        if len(self.kernels) > SHOWN:
            left = sum(k.seconds for k in self.kernels[SHOWN:])
            lines.append(f"  {_ms(left):>9} ms {_share(left, total)} in all others")
        return "\n".join(lines)


def _table(values: dict[str, float], titles: dict[str, str], total: float) -> list[str]:
    return [f"  {_ms(values[n]):>9} ms {_share(values[n], total)} {titles[n]}" for n in titles]


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3f}" if seconds < 0.1 else f"{seconds * 1e3:.0f}"


def _share(seconds: float, total: float) -> str:
    return f"{seconds / total if total else 0:4.0%}"


class Stopwatch:
    """Times the graphs of a call, and the sessions inside them."""

    def __init__(self, options: OrtBackendOptions) -> None:
        self.options = options
        self.traces: list[CompileTrace] = []
        self.graphs = self.sessions = 0.0
        """Seconds, until :meth:`take` is called."""
        self.profiled: list[_Profiled] = []
        self.folder: Path | None = None
        """Where profiles are written; None while nothing is profiled."""

    def take(self) -> tuple[float, float]:
        """The seconds in graphs and in sessions since the last time."""
        taken = self.graphs, self.sessions
        self.graphs = self.sessions = 0.0
        return taken

    def watch_graph(self, run: RunBoxed) -> RunBoxed:
        """Put the watch around what runs a graph."""

        def call(args: list[Any]) -> Any:
            start = now()
            results = run(args)
            self.graphs += now() - start
            return results

        call._boxed_call = True  # type: ignore[attr-defined]  # read by torch
        return call

    def watch_session(self, built: BuiltBlock, run: RunBoxed) -> RunBoxed:
        """Put the watch around what runs a session; what computes nothing has none."""
        if built.session is None:
            return run
        profiled = _Profiled(built, self.options)
        self.profiled.append(profiled)

        def call(args: list[Any]) -> Any:
            if self.folder is not None:
                return profiled(args, self.folder / str(self.profiled.index(profiled)))
            start = now()
            results = run(args)
            self.sessions += now() - start
            return results

        return call

    def phases(self) -> dict[str, float]:
        """The seconds of each phase of the compilations."""
        found: dict[str, float] = defaultdict(float)
        for trace in self.traces:
            for name, seconds in trace.timings.items():
                found[name] += seconds
        return found


def now() -> float:
    """The time, once the device has done what was asked of it."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter()


class _Profiled:
    """A block with a session beside its own, which writes a profile."""

    def __init__(self, built: BuiltBlock, options: OrtBackendOptions) -> None:
        self.built = built
        self.options = options
        self.session: Session | None = None
        self.executor: Executor | None = None
        self.walls: list[float] = []
        self.copied: list[int] = []

    def __call__(self, args: list[Any], prefix: Path) -> Any:
        if self.executor is None:
            self.executor = self._build(prefix)
        self.copied.append(self._count_copied(args))
        start = now()
        results = self.executor.boxed(args)
        self.walls.append(now() - start)
        return results

    def _build(self, prefix: Path) -> Executor:
        assert self.built.session is not None
        providers = [(p.name, p.options) for p in self.built.session.providers]
        settings = session_settings(self.options, self.built.model, providers)
        options = dataclasses.replace(self.options, ort_session_options=settings)
        with profiling(settings, prefix):
            self.session = build_session(self.built.model, providers, options)
        return make_executor(self.session, self.built, options)

    def _count_copied(self, args: Sequence[Any]) -> int:
        slots = zip(self.built.signature.inputs, args, strict=True)
        given = [(s, a) for s, a in slots if s.name and s.kind == "tensor"]
        ordered = [(s, a if s.order is None else a.permute(s.order)) for s, a in given]
        return sum(
            not a.is_contiguous() or a.is_conj() or a.dtype is not s.dtype for s, a in ordered
        )

    def runs(self) -> list[ProfiledRun]:
        """End the profile, and read it."""
        return [] if self.session is None else read_profile(self.session)


@dataclass(frozen=True, kw_only=True)
class _Profile:
    """What the profiled calls of a model say about one call, in seconds."""

    boundaries: float = 0.0
    copied: int = 0
    kernels: tuple[KernelTime, ...] = ()


def measure(eager: Callable[[], Any], compiled: Callable[[], Any], watch: Stopwatch) -> Times:
    """Time a model in eager mode and compiled; neither was called before."""
    eager()  # what torch itself does once is no part of the first call
    first_call = _seconds(compiled)
    run, _ = watch.take()
    phases = watch.phases()
    phases["run"] = run
    phases["torch"] = max(0.0, first_call - sum(phases.values()))
    for _ in range(WARM_UP):
        eager()
        compiled()
    in_eager: list[float] = []
    in_all: list[tuple[float, float, float]] = []
    while len(in_all) < CALLS or (
        sum(in_eager) + sum(c[0] for c in in_all) < SECONDS and len(in_all) < MOST_CALLS
    ):
        in_eager.append(_seconds(eager))
        watch.take()
        in_all.append((_seconds(compiled), *watch.take()))
    profile = _profile(compiled, watch)
    call, graphs, sessions = sorted(in_all)[len(in_all) // 2]
    kernels = sum(k.seconds for k in profile.kernels)
    # The profiler slows down: what it says is never more than what was there without it.
    inside = {"kernels": min(kernels, sessions)}
    inside["boundaries"] = min(profile.boundaries, sessions - inside["kernels"])
    inside["session"] = sessions - inside["kernels"] - inside["boundaries"]
    return Times(
        eager=statistics.median(in_eager),
        call=call,
        calls=len(in_all),
        parts={**inside, "torch": graphs - sessions, "around": call - graphs},
        copies=sum(k.seconds for k in profile.kernels if k.op in MOVING),
        copied_arguments=profile.copied,
        kernels=profile.kernels,
        first_call=first_call,
        phases={name: phases.get(name, 0.0) for name in PHASES},
    )


def _seconds(call: Callable[[], Any]) -> float:
    start = now()
    call()
    return now() - start


def _profile(compiled: Callable[[], Any], watch: Stopwatch) -> _Profile:
    with tempfile.TemporaryDirectory(prefix="dort-profile-") as folder:
        watch.folder = Path(folder)
        try:
            for _ in range(WARM_UP + CALLS):
                compiled()
        finally:
            watch.folder = None
            runs = {p: p.runs() for p in watch.profiled}
    calls = WARM_UP + CALLS
    boundaries, copied = 0.0, 0.0
    kernels: list[KernelTime] = []
    for profiled, found in runs.items():
        if not found:
            continue
        often = len(found) / calls  # a graph may run several times in a call, or not in each
        warm = found[len(found) * WARM_UP // calls :]
        run = statistics.median(r.seconds for r in warm)
        boundaries += max(0.0, statistics.median(profiled.walls) - run) * often
        copied += statistics.median(profiled.copied) * often
        kernels += _kernels(warm, sources_of(profiled.built.model), often)
    return _Profile(boundaries=boundaries, copied=round(copied), kernels=_merged(kernels))


def _kernels(
    runs: Sequence[ProfiledRun], sources: Mapping[str, str], often: float
) -> Iterator[KernelTime]:
    """Yield the kernels of a session that runs so often in a call."""
    nodes = {(op, node) for run in runs for op, node, _ in run.kernels}
    where = {node: source_of(node, sources) for _, node in nodes}
    times: dict[tuple[str, str], list[list[float]]] = {}
    for number, run in enumerate(runs):
        for op, node, seconds in run.kernels:
            per_run = times.setdefault((op, where[node]), [[] for _ in runs])
            per_run[number].append(seconds)
    for (op, line), per_run in times.items():
        yield KernelTime(
            op=op,
            where=line,
            seconds=statistics.median(map(sum, per_run)) * often,
            runs=round(statistics.median(map(len, per_run)) * often),
        )


def _merged(kernels: Sequence[KernelTime]) -> tuple[KernelTime, ...]:
    """Add up what several sessions run for the same Python line; the slowest first."""
    found: dict[tuple[str, str], KernelTime] = {}
    for k in kernels:
        if (known := found.get((k.op, k.where))) is not None:
            k = dataclasses.replace(
                known, seconds=known.seconds + k.seconds, runs=known.runs + k.runs
            )
        found[k.op, k.where] = k
    return tuple(sorted(found.values(), key=lambda k: -k.seconds))
