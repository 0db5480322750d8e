"""What each rule and each class of kernels is worth: whole programs with it and without it.

usage: python scripts/ablate.py FILE.jsonl [--programs mlp-512/training,...] [--seconds S]
                                [--level sets|modules|rules] [--base kernels|onnxruntime|default]
                                [--only NAME,...] [--cpu-time] [--threads N]
       python scripts/ablate.py FILE.jsonl [FILE.jsonl ...] --table

A program is a model of ``bench_run.py`` in inference, in training, or either under bfloat16
autocast (``bert/training/bfloat16``), the step of an optimizer (``AdamW/optimizer``), a token of a
decoder (``llama/decode``), or a long sequence (``llama-long/training``). Each runs in a process of
its own. What takes no part in a program is not timed there. Programs with and without something
are timed in turns; a row of the file is the time without it over the time with it, the geometric
mean over rounds with its interval of 95 %. Rows that the file has are not measured again.
``--table`` joins files of several processors and levels: what pays, and what gains nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).parent))

Step = Callable[[], Any]

BASES = {
    "kernels": "default+onnxruntime+kernels",
    "onnxruntime": "default+onnxruntime",
    "default": "default",
}
"""The rules that are on where nothing is taken away, by the name of a column of the table."""

PAYS = 1.01
"""A gain below it is not worth a rule, however sure."""

ROUNDS = 16
AT_ONCE = 5
"""Variants that are timed in turns with the program that has everything."""

SHORTEST = 0.004
"""Seconds of steps in a row, of which the median counts."""


@dataclass(frozen=True)
class Removal:
    """What is taken away: rules, operators in torch's or MKL's kernels, or operators of ours that
    converters write."""

    name: str
    kind: str
    rules: frozenset[str] = frozenset()
    operators: frozenset[str] = frozenset()
    converters: frozenset[str] = frozenset()


@dataclass
class Seen:
    """What took part in the compilation of a program."""

    reports: list[Any] = field(default_factory=list)
    operators: set[str] = field(default_factory=set)
    converters: set[str] = field(default_factory=set)
    """Functions that asked whether a kernel of ours may compute, and heard yes."""

    @property
    def rules(self) -> set[str]:
        """The rules that changed a model."""
        return {rule.name for r in self.reports for rule in r.rules.values() if rule.matches}


@contextmanager
def watched(seen: Seen, without: frozenset[str] = frozenset()) -> Iterator[None]:
    """Note what takes part; converters that are named hear that there is no kernel of ours."""
    from dort_rewriter.export.recorder import Recorder
    from dort_rewriter.optimize import pipeline
    from dort_rewriter.plan import graph_plan

    takes_own, finished = Recorder.takes_own, graph_plan._Draft.finish

    def takes(recorder: Recorder, *values: Any) -> bool:
        code = sys._getframe(1).f_code
        caller = f"{Path(code.co_filename).stem}.{code.co_name}"
        taken = takes_own(recorder, *values)
        if taken:
            seen.converters.add(caller)
        return taken and caller not in without

    class Report(pipeline.OptimizeReport):
        def __init__(self, **numbers: Any) -> None:
            super().__init__(**numbers)
            seen.reports.append(self)

    def finish(draft: Any) -> Any:
        plan = finished(draft)
        for _, node in plan.nodes():
            base = node.op.partition(".")[0]
            if node.is_kernel or node.by == "torch" or base in PRODUCTS:
                seen.operators.add(base)
        return plan

    with (
        mock.patch.object(Recorder, "takes_own", takes),
        mock.patch.object(pipeline, "OptimizeReport", Report),
        mock.patch.object(graph_plan._Draft, "finish", finish),
    ):
        yield


PRODUCTS = frozenset({"aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm"})
"""What sessions may give to MKL, which no plan tells of."""


def removals(level: str, base: str, seen: Seen) -> list[Removal]:
    """What is taken away of a program, by what took part in it."""
    from dort_rewriter.optimize.pipeline import SETS
    from dort_rewriter.plan import placement

    found: dict[str, tuple[str, set[str]]] = {}
    for name in BASES[base].split("+"):
        for cls in SETS[name]:
            module = cls.__module__.split("patterns.")[-1]
            key = {"sets": name, "modules": module, "rules": cls.__name__}[level]
            if (rule := cls().name) in seen.rules:
                found.setdefault(key, (name, set()))[1].add(rule)
    result = [Removal(k, kind, frozenset(rules)) for k, (kind, rules) in found.items()]
    if base != "kernels":
        return result
    classes = {
        "products by MKL or torch": PRODUCTS,
        "convolutions by torch": frozenset(placement.CONVOLUTIONS),
        "attention without scores": frozenset(placement.ATTENTION),
        "faster in torch by the table": frozenset(placement.COSTS),
        "one kernel in torch": placement.ONE_KERNEL,
    }
    for name, operators in classes.items():
        if used := operators & seen.operators:
            result.append(Removal(name, "torch", operators=used))
    if level == "sets" and seen.converters:
        names = frozenset(seen.converters)
        result.append(Removal("converters to ours", "ours", converters=names))
    elif level != "sets":
        result += [
            Removal(f"{name} by ours", "ours", converters=frozenset({name}))
            for name in sorted(seen.converters)
        ]
    return result


def backend_without(removal: Removal | None, base: str, number: int) -> Any:
    """A backend that shares no model with another: the text of its selection is its own."""
    from dort_rewriter import OrtBackend

    patterns = BASES[base] + "-NotNot+NotNot" * number
    if removal is not None and removal.rules:
        patterns += "".join(f"-{name}" for name in sorted(removal.rules))
    operators = removal.operators if removal is not None else ()
    placement = dict.fromkeys(operators, "onnxruntime") or None
    return OrtBackend({"optimization": {"patterns": patterns}, "placement": placement})


def make_program(name: str) -> Callable[[Any], Step]:
    """A function that gives one step of a program under a backend."""
    import bench_decode
    import bench_optimizers
    import torch
    from bench_models import BenchModel, build, llama
    from bench_run import compiled, step_of

    model_name, mode, *narrow = name.split("/")
    if mode == "optimizer":
        return lambda backend: bench_optimizers.Subject(model_name, backend, 3_000_000).step
    if mode == "decode":
        settings = argparse.Namespace(width=256, layers=2, heads=8, length=512)
        return lambda backend: bench_decode.step_of(settings, 2, backend)
    if model_name == "llama-long":
        torch.manual_seed(0)
        model = BenchModel(model_name, *llama(256, 2, 1, 2048))
    else:
        model = build(model_name)
    model.module.train(mode == "training")
    for module in model.module.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = 0.0
    wide = getattr(torch, narrow[0]) if narrow else None
    return lambda backend: step_of(model, compiled(model, backend, wide), mode)


def programs() -> list[str]:
    """All of them."""
    from bench_models import MODELS
    from bench_optimizers import OPTIMIZERS

    kinds = ("inference", "training", "inference/bfloat16", "training/bfloat16")
    return [
        *(f"{name}/{kind}" for kind in kinds for name in MODELS),
        *(f"{name}/optimizer" for name in OPTIMIZERS),
        "llama/decode",
        *(f"llama-long/{kind}" for kind in kinds[:2]),
    ]


def compile_step(
    make: Callable[[Any], Step], base: str, seen: Seen, removal: Removal | None, number: int
) -> Step:
    """A step that has run: forward and backward are compiled."""
    with watched(seen, removal.converters if removal is not None else frozenset()):
        step = make(backend_without(removal, base, number))
        step()
    step()
    return step


def timed(steps: Sequence[Step], seconds: float, clock: Callable[[], float]) -> list[list[float]]:
    """The medians of each round, of each of the steps."""
    spent: list[list[float]] = [[] for _ in steps]
    for _ in range(ROUNDS):
        order = list(range(len(steps)))
        random.shuffle(order)
        for i in order:
            steps[i]()  # in caches that the others left
            times: list[float] = []
            end = time.perf_counter() + max(seconds / ROUNDS, SHORTEST)
            while time.perf_counter() < end or len(times) < 3:
                start = clock()
                steps[i]()
                times.append(clock() - start)
            spent[i].append(statistics.median(times))
    return spent


def interval(with_it: Sequence[float], without: Sequence[float]) -> tuple[float, float, float]:
    """The mean of the ratios of rounds, and the ends of its interval of 95 %."""
    logs = sorted(math.log(b / a) for a, b in zip(with_it, without, strict=True))
    kept = logs[len(logs) // 8 : len(logs) - len(logs) // 8]  # rounds that something disturbed
    mean, spread = statistics.fmean(kept), statistics.stdev(kept) / math.sqrt(len(kept))
    return math.exp(mean), math.exp(mean - 2.2 * spread), math.exp(mean + 2.2 * spread)


def measure(name: str, arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The rows of a program."""
    import torch

    torch.set_num_threads(arguments.threads)
    clock = time.process_time if arguments.cpu_time else time.perf_counter
    seen, make = Seen(), make_program(name)
    base = compile_step(make, arguments.base, seen, None, 0)
    left = removals(arguments.level, arguments.base, seen)
    if arguments.only:
        only = set(arguments.only.split(","))
        left = [removal for removal in left if {removal.name, removal.kind} & only]
    common = {
        "program": name,
        "level": arguments.level,
        "base": arguments.base,
        "threads": arguments.threads,
        "processor": processor(),
    }
    for first in range(0, len(left), AT_ONCE):
        chosen = left[first : first + AT_ONCE]
        steps = [
            compile_step(make, arguments.base, Seen(), removal, first + i + 1)
            for i, removal in enumerate(chosen)
        ]
        reference, *others = timed([base, *steps], arguments.seconds, clock)
        for removal, times in zip(chosen, others, strict=True):
            ratio, low, high = interval(reference, times)
            yield {
                **common,
                "without": removal.name,
                "kind": removal.kind,
                "ratio": ratio,
                "low": low,
                "high": high,
                "ms": statistics.median(reference) * 1e3,
            }
    yield {**common, "without": None, "ms": None}


def processor() -> str:
    """The name of this processor."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    found = {k.strip(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
    levels = [f for f in ("avx512f", "avx512_bf16", "amx_tile") if f in found["flags"].split()]
    return " ".join([found["model name"], found["cpu family"], *levels])


def read(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def run_all(arguments: argparse.Namespace) -> int:
    """Measure each program in a process of its own; the number of those that failed."""
    (path,) = arguments.files
    done = {
        (r["program"], r["level"], r["base"])
        for r in read(path)
        if r["without"] is None and r["processor"] == processor()
    }
    failed = 0
    for name in arguments.programs.split(",") if arguments.programs else programs():
        if (name, arguments.level, arguments.base) in done:
            continue
        passed = ["--level", arguments.level, "--base", arguments.base]
        passed += ["--seconds", str(arguments.seconds), "--threads", str(arguments.threads)]
        passed += ["--cpu-time"] if arguments.cpu_time else []
        passed += ["--only", arguments.only] if arguments.only else []
        command = [sys.executable, __file__, str(path), "--programs", name, "--here", *passed]
        ended = subprocess.run(command, check=False)
        failed += ended.returncode != 0
        print(f"{name}: {'done' if ended.returncode == 0 else 'FAILED'}", flush=True)
    return failed


def run_here(arguments: argparse.Namespace) -> int:
    rows = list(measure(arguments.programs, arguments))
    with arguments.files[0].open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    return 0


def table(rows: Sequence[dict[str, Any]]) -> str:
    """What was taken away, with what it is worth in each column, most first.

    A cell: programs that get slower without it beyond noise, of those that it takes part in; the
    largest gain; the geometric mean.
    """
    cells: dict[str, dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row["without"] is not None:
            cells[row["without"]][row["base"]].append(row)

    def worth(name: str) -> float:
        return max(r["low"] for found in cells[name].values() for r in found)

    heads = [b for b in reversed(BASES) if any(b in c for c in cells.values())]
    lines = ["| " + " | ".join(["taken away", *heads]) + " |", "| --- " * (len(heads) + 1) + "|"]
    for name in sorted(cells, key=worth, reverse=True):
        texts = [_cell(cells[name].get(head, [])) for head in heads]
        lines.append("| " + " | ".join([name, *texts]) + " |")
    return "\n".join(lines)


def _cell(found: Sequence[dict[str, Any]]) -> str:
    if not found:
        return "-"
    mean = math.exp(statistics.fmean(math.log(r["ratio"]) for r in found))
    gains = [r for r in found if r["low"] > PAYS]
    losses = [r for r in found if r["high"] < 1 / PAYS]
    best = max(found, key=lambda r: r["low"])
    text = f"{mean:.3f}, {len(gains)} of {len(found)} gain"
    text += f" (most {best['ratio']:.2f}: {best['program']})" if gains else ""
    if losses:
        worst = min(losses, key=lambda r: r["high"])
        text += f", {len(losses)} lose (most {worst['ratio']:.2f}: {worst['program']})"
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path, help="rows of JSON, which are added to")
    parser.add_argument("--programs", help="their names, with commas")
    parser.add_argument("--level", choices=("sets", "modules", "rules"), default="modules")
    parser.add_argument("--base", choices=BASES, default="kernels")
    parser.add_argument("--only", help="names, or sets, of what is taken away, with commas")
    parser.add_argument("--seconds", type=float, default=0.5, help="of each variant")
    parser.add_argument("--threads", type=int, default=1, help="of torch and of sessions")
    parser.add_argument("--cpu-time", action="store_true", help="of the process, one thread")
    parser.add_argument("--table", action="store_true", help="print what the files say")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.table:
        print(table([row for path in arguments.files for row in read(path)]))
        return 0
    return run_here(arguments) if arguments.here else int(run_all(arguments) > 0)


if __name__ == "__main__":
    sys.exit(main())
