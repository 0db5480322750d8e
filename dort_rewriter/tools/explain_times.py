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
from typing import Any, NamedTuple

import torch

from dort_rewriter.compiler.building import build_session, make_executor
from dort_rewriter.kernels.operators import TORCH_CALL
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
from dort_rewriter.runtime.session import Session, session_settings
from dort_rewriter.tools.machine import busy
from dort_rewriter.trace import CompileTrace

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
    "kernels": "kernels of ONNX Runtime and of this package",
    "called": "torch, called by sessions",
    "session": "ONNX Runtime around its kernels",
    "boundaries": "boundaries: tensors in and out",
    "torch": "torch, beside the sessions",
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
    eager_spread: tuple[float, float]
    """The first and the last quartile of such calls."""
    call: float
    """A call of the compiled model: the median."""
    call_spread: tuple[float, float]
    calls: int
    """How many calls of each were timed."""
    parts: dict[str, float]
    """What the call is made of."""
    copies: float
    """What the kernels that only copy or convert take of it."""
    copied_arguments: int
    """How many tensors a call copies before a session can read them."""
    kernels: tuple[KernelTime, ...]
    """The slowest first. Their times are those under the profiler, scaled to what calls without
    it take in kernels."""
    profiled: float
    """What all kernels take under the profiler."""
    first_call: float
    phases: dict[str, float]
    """What the first call is made of."""
    busy: str = ""
    """Why the times say little; empty if nothing speaks against them."""

    def summary(self) -> str:
        """The two times that are compared, in one line."""
        return (
            f"a call: {_spread(self.call, self.call_spread)} ms, in eager mode "
            f"{_spread(self.eager, self.eager_spread)} ms (medians and quartiles of {self.calls})"
        )

    def tables(self) -> dict[str, list[tuple[float, float, str]]]:
        """Seconds, share and name of what a call, its kernels and the first call are made of."""
        total = sum(k.seconds for k in self.kernels)
        kernels = [(k.seconds, f"{k.runs:4} x {k.op}{_at(k)}") for k in self.kernels[:SHOWN]]
        if len(self.kernels) > SHOWN:
            kernels.append((sum(k.seconds for k in self.kernels[SHOWN:]), "in all others"))
        slower = f", {_ms(self.profiled)} ms under the profiler" if self.kernels else ""
        return {
            "a call": _shares([(self.parts[n], PARTS[n]) for n in PARTS], self.call),
            f"its kernels: {_ms(total)} ms{slower}": _shares(kernels, total),
            f"the first call: {_ms(self.first_call)} ms": _shares(
                [(self.phases[n], PHASES[n]) for n in PHASES], self.first_call
            ),
        }

    def __str__(self) -> str:
        of_call, *others = self.tables().items()
        lines = [f"NOTE: {self.busy}: measure again when it is not."] if self.busy else []
        lines += [self.summary(), *_lines(of_call[1])]
        lines.append(f"of the kernels, those that copy or convert: {_ms(self.copies)} ms")
        if self.copied_arguments:
            lines.append(f"copied before a session can read them: {self.copied_arguments} tensors")
        for title, rows in others:
            lines += [title, *_lines(rows)]
        return "\n".join(lines)


def _shares(rows: Sequence[tuple[float, str]], total: float) -> list[tuple[float, float, str]]:
    return [(seconds, seconds / total if total else 0.0, name) for seconds, name in rows]


def _lines(rows: Sequence[tuple[float, float, str]]) -> list[str]:
    return [f"  {_ms(seconds):>9} ms {share:4.0%} {name}" for seconds, share, name in rows]


def _at(kernel: KernelTime) -> str:
    return f" at {kernel.where}" if kernel.where else ""


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3f}"


def _spread(median: float, quartiles: tuple[float, float]) -> str:
    low, high = quartiles
    return f"{_ms(median)} ({_ms(low)} to {_ms(high)})"


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


class _Profile(NamedTuple):
    """What the profiled calls of a model say about one call, in seconds."""

    boundaries: float
    copied: int
    kernels: tuple[KernelTime, ...]


def measure(
    eager: Callable[[], Any], compiled: Callable[[], Any], watch: Stopwatch, tries: int = 1
) -> Times:
    """Time a model in eager mode and compiled; neither was called before.

    ``tries`` is how many calls of the compiled one it takes until it runs as it will.
    """
    nervous = busy(torch.get_num_threads())
    eager()  # what torch itself does once is no part of the first call
    first_call = _seconds(compiled)
    run, _ = watch.take()
    phases = watch.phases()
    phases["run"] = run
    phases["torch"] = max(0.0, first_call - sum(phases.values()))
    for _ in range(tries - 1):
        compiled()
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
    others = busy(torch.get_num_threads()) or nervous
    profile = _profile(compiled, watch)
    return _times(in_eager, in_all, profile, first_call, phases, others)


def _times(
    in_eager: Sequence[float],
    in_all: Sequence[tuple[float, float, float]],
    profile: _Profile,
    first_call: float,
    phases: Mapping[str, float],
    others: str,
) -> Times:
    """What calls of ``(all, in graphs, in sessions)`` and a profile say together."""
    call, graphs, sessions = _middle(in_all)
    raw = sum(k.seconds for k in profile.kernels)
    # The profiler slows down: what it says is never more than what was there without it.
    scale = min(1.0, sessions / raw) if raw else 0.0
    kernels = tuple(dataclasses.replace(k, seconds=k.seconds * scale) for k in profile.kernels)
    called = sum(k.seconds for k in kernels if k.op == TORCH_CALL)
    inside = {"kernels": sum(k.seconds for k in kernels) - called, "called": called}
    left = max(0.0, sessions - sum(inside.values()))
    inside["boundaries"] = min(profile.boundaries, left)
    inside["session"] = left - inside["boundaries"]
    return Times(
        eager=statistics.median(in_eager),
        eager_spread=_quartiles(in_eager),
        call=call,
        call_spread=_quartiles([c[0] for c in in_all]),
        calls=len(in_all),
        parts={**inside, "torch": graphs - sessions, "around": call - graphs},
        copies=sum(k.seconds for k in kernels if k.op in MOVING),
        copied_arguments=profile.copied,
        kernels=kernels,
        profiled=raw,
        first_call=first_call,
        phases={name: phases.get(name, 0.0) for name in PHASES},
        busy=others,
    )


def _middle(calls: Sequence[tuple[float, float, float]]) -> tuple[float, float, float]:
    """The median call, made of what the calls of the middle half are made of."""
    ordered = sorted(calls)
    half = ordered[len(ordered) // 4 : len(ordered) - len(ordered) // 4]
    call, *inside = (statistics.fmean(column) for column in zip(*half, strict=True))
    median = statistics.median(c[0] for c in calls)
    graphs, sessions = (value * median / call for value in inside)
    return median, graphs, min(sessions, graphs)


def _quartiles(seconds: Sequence[float]) -> tuple[float, float]:
    low, _, high = statistics.quantiles(seconds, n=4, method="inclusive")
    return low, high


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
    times: dict[tuple[str, str], list[tuple[float, int]]] = defaultdict(list)
    for profiled, found in runs.items():
        if not found:
            continue
        often = len(found) / calls  # a graph may run several times in a call, or not in each
        warm = found[len(found) * WARM_UP // calls :]
        run = statistics.median(r.seconds for r in warm)
        boundaries += max(0.0, statistics.median(profiled.walls) - run) * often
        copied += statistics.median(profiled.copied) * often
        for key, time_of_it in _kernels(warm, sources_of(profiled.built.model), often):
            times[key].append(time_of_it)
    kernels = [
        KernelTime(
            op=op, where=where, seconds=sum(s for s, _ in found), runs=sum(r for _, r in found)
        )
        for (op, where), found in times.items()
    ]
    slowest_first = sorted(kernels, key=lambda k: -k.seconds)
    return _Profile(boundaries, round(copied), tuple(slowest_first))


def _kernels(
    runs: Sequence[ProfiledRun], sources: Mapping[str, str], often: float
) -> Iterator[tuple[tuple[str, str], tuple[float, int]]]:
    """Yield operators with their Python lines, and the seconds and runs of their kernels in a call
    of the model, which runs this session so often."""
    nodes = {node for run in runs for _, node, _ in run.kernels}
    where = {node: source_of(node, sources) for node in nodes}
    times: dict[tuple[str, str], list[list[float]]] = {}
    for number, run in enumerate(runs):
        for op, node, seconds in run.kernels:
            per_run = times.setdefault((op, where[node]), [[] for _ in runs])
            per_run[number].append(seconds)
    for key, per_run in times.items():
        seconds = statistics.median(map(sum, per_run)) * often
        yield key, (seconds, round(statistics.median(map(len, per_run)) * often))
