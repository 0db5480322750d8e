"""Time in ONNX Runtime's kernels, by its profiler, for one training step of a two-layer Llama.

``kernel_ms`` is the median of the steps; ``quiet_ms`` the sum over all nodes of the least each of
them took, which other work on the machine disturbs less.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir
from bench_graphs import Captured, capture, llama_step
from bench_subjects import Subject

from dort_rewriter.runtime.session import session_options
from dort_rewriter.runtime.threads import ThreadPolicy

WARM_UP = 3

Times = Counter[tuple[str, str]]
"""Microseconds by operator and node."""


class Profiled(Subject):
    """A graph whose session writes a profile."""

    def __init__(self, captured: Captured, selection: str | None, threads: int, to: Path) -> None:
        options = session_options(threads=ThreadPolicy(intra_op_threads=threads))
        options.enable_profiling = True
        options.profile_file_prefix = str(to / captured.name.replace("/", "_"))
        super().__init__(captured, selection, threads, options)
        assert len(self.blocks) == 1, "the sessions of a graph would share a profile"

    def kernel_times(self) -> list[Times]:
        """Return the microseconds of each node, run by run, once warm."""
        session = self.blocks[0].session
        assert session is not None
        events = json.loads(Path(session.ort.end_profiling()).read_text(encoding="utf-8"))
        return split_by_run(events)[WARM_UP:]


def split_by_run(events: Sequence[Mapping[str, Any]]) -> list[Times]:
    """Return the kernel times of a profile for each run of the model, node by node."""
    runs = sorted(e["ts"] for e in events if e["name"] == "model_run")
    times: list[Times] = [Counter() for _ in runs]
    for event in events:
        if event.get("cat") != "Node" or not event["name"].endswith("_kernel_time"):
            continue
        index = sum(start <= event["ts"] for start in runs) - 1
        times[index][event["args"]["op_name"], event["name"]] += event["dur"]
    return times


def measure_llama_step(
    sets: Mapping[str, str | None], threads: int, rounds: int
) -> list[dict[str, Any]]:
    """Return a row for each set: kernel time of forward plus backward, and what is left."""
    graphs = capture("llama-step", llama_step, dynamic=False, training=True)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        subjects: dict[str, list[Profiled]] = defaultdict(list)
        for number, (name, selection) in enumerate(sets.items()):
            place = Path(folder, str(number))
            place.mkdir()
            subjects[name] = [Profiled(g, selection, threads, place) for g in graphs]
        for _ in range(rounds + WARM_UP):
            for pair in subjects.values():
                for subject in pair:
                    subject()
        for name, pair in subjects.items():
            rows.append(_row(name, pair))
    reference = next((r for r in rows if r["set"] == "none"), rows[0])
    for row in rows:
        row["saved"] = 1 - row["kernel_ms"] / reference["kernel_ms"]
        row["quiet_saved"] = 1 - row["quiet_ms"] / reference["quiet_ms"]
        print(
            f"{row['set']:33} kernels {row['kernel_ms']:8.2f} ms, {row['saved']:+.1%} saved; "
            f"quiet {row['quiet_ms']:8.2f} ms, {row['quiet_saved']:+.1%} saved; "
            f"error {row['max_error']:.0e}, left over: {row['left_over']}"
        )
        print(f"    quiet ms by operator: {row['quiet_ms_by_operator']}")
        print(f"    applied: {row['applied']}")
    return rows


def _row(name: str, pair: Sequence[Profiled]) -> dict[str, Any]:
    runs = [subject.kernel_times() for subject in pair]
    totals = [sum(sum(part.values()) for part in step) for step in zip(*runs, strict=True)]
    quiet: Counter[str] = Counter()
    for graph in runs:
        for node in {node for run in graph for node in run}:
            quiet[node[0]] += min(run[node] for run in graph)
    parts = [subject.describe() for subject in pair]
    applied: Counter[str] = Counter()
    left_over: Counter[str] = Counter()
    for subject, part in zip(pair, parts, strict=True):
        applied.update(part["applied"])
        left_over.update(count_left_over(subject.blocks[0].exported.model.graph))
    return {
        "set": name,
        "kernel_ms": statistics.median(totals) / 1e3,
        "quiet_ms": sum(quiet.values()) / 1e3,
        "quiet_ms_by_operator": {op: us / 1e3 for op, us in quiet.most_common(12)},
        "nodes": [part["nodes_after"] for part in parts],
        "applied": dict(applied),
        "left_over": dict(left_over),
        "max_error": max(part["max_error"] for part in parts),
        "within_tolerance": all(part["within_tolerance"] for part in parts),
    }


def count_left_over(graph: ir.Graph) -> Counter[str]:
    """Count what a good set leaves none of."""
    found: Counter[str] = Counter()
    for node in graph:
        above = [v.producer() for v in node.inputs if v is not None]
        operators = [a.op_type for a in above if a is not None]
        found["Identity"] += node.op_type == "Identity"
        found["Transpose before MatMul"] += node.op_type == "MatMul" and "Transpose" in operators
        found["Cast of Cast"] += node.op_type == "Cast" and "Cast" in operators
        if node.op_type == "Pow":
            exponent = node.inputs[1]
            tensor = None if exponent is None else exponent.const_value
            found["Pow with an integer"] += (
                tensor is not None and (tensor.numpy() == tensor.numpy().round()).all().item()
            )
        if node.op_type in ("Rsqrt", "Sqrt"):
            found["square root (of a norm)"] += 1
    return +found
