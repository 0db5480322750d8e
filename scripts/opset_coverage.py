"""Measure which operators run through ONNX Runtime, forward and backward, and whether rightly.

Every entry of torch's ``op_db`` that supports float32 is traced by AOTAutograd (int64 and bool
samples too where it takes them), each graph is converted, run, and compared with eager. A graph is

- converted: all of it ran in ONNX Runtime and the numbers are right;
- torch kernel: the same, but some operator has no converter, or its converter refused it: the
  session called it in torch;
- cut: some such operator cannot be called from a session, so the graph would be cut there;
- wrong: another result than eager;
- error: neither: the conversion broke, or ONNX Runtime refused the model or failed;
- untraceable: AOTAutograd makes no graph of it.

Exits with 1 when a graph is wrong or in error, or a share is below its target.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import importlib.metadata
import json
import os
import platform
import queue
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
WORKER = Path(__file__).with_name("coverage_worker.py")
STATUSES = ("converted", "torch kernel", "cut", "wrong", "error", "untraceable")
TARGET = 0.88
"""The share of the traceable graphs that are converted."""
WHOLE_TARGET = 0.99
"""The share of those that run in one session, converted or with kernels of torch."""
START_LIMIT = 180.0
"""Seconds a worker may take to start: it imports torch's test suite."""

Record = dict[str, Any]


class Worker:
    """A subprocess that measures entries; one that crashed or hangs is replaced by another."""

    def __init__(self, options: Sequence[str], limit: float, script: Path | None = None) -> None:
        self.script = script or WORKER
        self.options = options
        self.limit = limit
        self.process: subprocess.Popen[str] | None = None
        self.lines: queue.Queue[str] = queue.Queue()
        self.reader = threading.Thread()

    def start(self) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        self.lines = queue.Queue()
        self.process = subprocess.Popen(
            [sys.executable, str(self.script), *self.options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=ROOT,
            env=environment,
        )
        self.reader = threading.Thread(target=_forward, args=(self.process, self.lines))
        self.reader.start()

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.reader.join()
            for pipe in (self.process.stdin, self.process.stdout):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):
                        pipe.close()
            self.process = None

    def measure(self, name: str) -> Iterator[Record]:
        """Yield the records of an entry; the last says so when the worker did not survive it."""
        limit = self.limit
        if self.process is None:
            self.start()
            limit = START_LIMIT
        assert self.process is not None
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the end of its output tells
            self.process.stdin.write(name + "\n")
            self.process.stdin.flush()
        while True:
            try:
                line = self.lines.get(timeout=limit)
            except queue.Empty:
                yield _lost(name, f"no answer in {limit:.0f} s")
                self.stop()
                return
            limit = self.limit
            if not line:
                yield _lost(name, f"the process ended with {self.process.wait()}")
                self.stop()
                return
            record = json.loads(line)
            if "done" in record:
                return
            yield record


def _lost(name: str, detail: str) -> Record:
    return {"op": name, "graph": "unknown", "status": "error", "detail": detail}


def _forward(process: subprocess.Popen[str], lines: queue.Queue[str]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        lines.put(line)
    lines.put("")


def measure_all(
    names: Sequence[str], count: int, make: Callable[[], Worker], show: Callable[[Record], None]
) -> list[Record]:
    """Measure entries with so many workers; each record is shown when it comes."""
    todo: queue.SimpleQueue[str] = queue.SimpleQueue()
    for name in names:
        todo.put(name)
    records: list[Record] = []

    def work() -> None:
        worker = make()
        try:
            while True:
                for record in worker.measure(todo.get_nowait()):
                    records.append(record)
                    show(record)
        except queue.Empty:
            worker.stop()

    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return records


def sweep(names: Sequence[str], args: argparse.Namespace) -> list[Record]:
    """Measure the entries with as many workers as asked for, in order."""

    def show(record: Record) -> None:
        if args.verbose and record["status"] not in ("converted", "skipped"):
            print(describe(record), flush=True)

    def make() -> Worker:
        return Worker(worker_options(args), args.timeout)

    records = measure_all(names, args.workers, make, show)
    order = {name: i for i, name in enumerate(names)}
    return sorted(records, key=lambda r: order[r["op"]])


def worker_options(args: argparse.Namespace) -> list[str]:
    options = ["--samples", str(args.samples), "--opset", str(args.opset)]
    return [*options, "--dynamic"] if args.dynamic else options


def list_entries(pattern: str | None) -> list[str]:
    """The names of the entries to measure."""
    command = [sys.executable, str(WORKER), "--list", "--samples", "0", "--opset", "18"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
    )
    names: list[str] = json.loads(done.stdout)
    return [n for n in names if pattern is None or re.fullmatch(pattern, n)]


def describe(record: Record) -> str:
    """A finding on one line."""
    where = f"{record.get('dtype', '?')} #{record.get('sample', '?')} {record.get('graph', '?')}"
    text = record.get("detail") or "; ".join(record.get("ops", ()))
    return f"{record['status']:11} {record['op']} ({where}): {text}"


def summarize(records: Sequence[Record]) -> Record:
    """The figures of a sweep."""
    counts = collections.Counter(r["status"] for r in records)
    traceable = sum(counts[s] for s in STATUSES if s != "untraceable")
    missing = collections.Counter(
        op for r in records if r["status"] != "torch kernel" for op in r.get("ops", ())
    )
    return {
        "counts": {s: counts[s] for s in STATUSES},
        "traceable": traceable,
        "converted_share": _share(counts["converted"], traceable),
        "whole_share": _share(counts["converted"] + counts["torch kernel"], traceable),
        "missing": dict(missing.most_common()),
    }


def _share(count: int, traceable: int) -> float:
    return round(count / traceable, 4) if traceable else 0.0


def environment() -> dict[str, str]:
    """The versions a sweep was made with."""
    wanted = ("torch", "onnxruntime", "onnxruntime-training", "onnxscript")
    installed = {d.name: d.version for d in importlib.metadata.distributions()}
    found = {name: installed[name] for name in wanted if name in installed}
    return {"python": platform.python_version(), **found}


def to_markdown(records: Sequence[Record], report: Record) -> str:
    """The page of the documentation that shows a sweep."""
    stack = ", ".join(f"{k} {v}" for k, v in report["environment"].items())
    lines = [
        "# Operator coverage",
        "",
        "Generated by `scripts/opset_coverage.py --markdown docs/coverage.md`: entries of",
        f"torch's `op_db`, forward and backward, at most {report['samples']} samples a type,",
        f"against eager ({stack}).",
        "",
        "| " + " | ".join(STATUSES) + " | converted, of the traceable | in one session |",
        "|" + " ---: |" * (len(STATUSES) + 2),
        "| "
        + " | ".join(str(report["counts"][s]) for s in STATUSES)
        + f" | {report['converted_share']:.1%} | {report['whole_share']:.1%} |",
        "",
        "A graph is *converted* when all of it has converters. An operator without one is called",
        "in torch from inside the session, as a *torch kernel*; where that cannot be, the graph",
        "is *cut*, and the operator runs in torch between two sessions. Where a column says",
        "`3/4`, three of four graphs are converted.",
        "",
        "| operator | forward | backward | torch kernel | cut |",
        "| --- | ---: | ---: | --- | --- |",
    ]
    by_op: dict[str, list[Record]] = collections.defaultdict(list)
    for record in records:
        if record["status"] in STATUSES:
            by_op[record["op"]].append(record)
    lines += [_row(op, found) for op, found in sorted(by_op.items())]
    return "\n".join(lines) + "\n"


def _row(op: str, records: Sequence[Record]) -> str:
    shares = []
    for kind in ("forward", "backward"):
        graphs = [r for r in records if r.get("graph") == kind and r["status"] != "untraceable"]
        converted = sum(r["status"] == "converted" for r in graphs)
        shares.append(f"{converted}/{len(graphs)}" if graphs else "")
    called = _named(r for r in records if r["status"] == "torch kernel")
    notes = _named(r for r in records if r["status"] != "torch kernel")
    notes += sorted({r["status"] for r in records} & {"wrong", "error", "untraceable"})
    return f"| `{op}` | {shares[0]} | {shares[1]} | {', '.join(called)} | {', '.join(notes)} |"


def _named(records: Iterable[Record]) -> list[str]:
    """The operators that records name."""
    names = {name.partition(": ")[0] for r in records for name in r.get("ops", ())}
    return [f"`{name}`" for name in sorted(names)]


def show(records: Sequence[Record], report: Record) -> None:
    for status in ("error", "wrong"):
        for record in records:
            if record["status"] == status:
                print(describe(record))
    for op, count in list(report["missing"].items())[:40]:
        print(f"cut {count:4} x {op}")
    counts = ", ".join(f"{n} {s}" for s, n in report["counts"].items())
    print(
        f"{report['entries']} entries in {report['seconds']} s: {counts}; "
        f"converted {report['converted_share']:.1%}, in one session {report['whole_share']:.1%} "
        f"of {report['traceable']} traceable graphs "
        f"(targets {TARGET:.0%} and {WHOLE_TARGET:.0%}, 0 wrong, 0 error)"
    )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", metavar="FILE", help="write the figures to this file")
    parser.add_argument("--markdown", metavar="FILE", help="write the page of the documentation")
    parser.add_argument("--ops", metavar="REGEX", help="only the entries whose whole name matches")
    parser.add_argument("--samples", type=int, default=4, help="samples a type (default 4)")
    parser.add_argument("--opset", type=int, default=18)
    parser.add_argument("--dynamic", action="store_true", help="trace with symbolic sizes")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--timeout", type=float, default=60, help="seconds for a graph (default 60)"
    )
    parser.add_argument("--verbose", action="store_true", help="print findings as they come")
    return parser.parse_args()


def main() -> int:
    args = parse()
    start = time.perf_counter()
    names = list_entries(args.ops)
    records = sweep(names, args)
    report = {
        "entries": len(names),
        "seconds": round(time.perf_counter() - start, 1),
        "samples": args.samples,
        "opset": args.opset,
        "dynamic": args.dynamic,
        "environment": environment(),
        **summarize(records),
    }
    if args.json:
        content = {**report, "graphs": records}
        Path(args.json).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    if args.markdown:
        Path(args.markdown).write_text(to_markdown(records, report), encoding="utf-8")
    show(records, report)
    counts = report["counts"]
    short = report["converted_share"] < TARGET or report["whole_share"] < WHOLE_TARGET
    return int(bool(counts["wrong"] or counts["error"]) or short)


if __name__ == "__main__":
    sys.exit(main())
