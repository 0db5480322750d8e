"""Time in ONNX Runtime's kernels, by its profiler, for one training step of a two-layer Llama."""

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


class Profiled(Subject):
    """A graph whose session writes a profile."""

    def __init__(self, captured: Captured, selection: str | None, threads: int, to: Path) -> None:
        options = session_options(threads=ThreadPolicy(intra_op_threads=threads))
        options.enable_profiling = True
        options.profile_file_prefix = str(to / captured.name.replace("/", "_"))
        super().__init__(captured, selection, threads, options)
        assert len(self.blocks) == 1, "the sessions of a graph would share a profile"

    def kernel_times(self) -> list[Counter[str]]:
        """Return the microseconds of each operator, run by run, once warm."""
        session = self.blocks[0].session
        assert session is not None
        events = json.loads(Path(session.ort.end_profiling()).read_text(encoding="utf-8"))
        return split_by_run(events)[WARM_UP:]


def split_by_run(events: Sequence[Mapping[str, Any]]) -> list[Counter[str]]:
    """Return the kernel times of a profile for each run of the model."""
    runs = sorted(e["ts"] for e in events if e["name"] == "model_run")
    times: list[Counter[str]] = [Counter() for _ in runs]
    for event in events:
        if event.get("cat") != "Node" or not event["name"].endswith("_kernel_time"):
            continue
        index = sum(start <= event["ts"] for start in runs) - 1
        times[index][event["args"]["op_name"]] += event["dur"]
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
        print(
            f"{row['set']:33} kernels {row['kernel_ms']:8.2f} ms, {row['saved']:+.1%} saved, "
            f"error {row['max_error']:.0e}, left over: {row['left_over']}"
        )
        print(f"    ms by operator: {row['ms_by_operator']}")
        print(f"    applied: {row['applied']}")
    return rows


def _row(name: str, pair: Sequence[Profiled]) -> dict[str, Any]:
    steps = [sum(runs, Counter()) for runs in zip(*(s.kernel_times() for s in pair), strict=True)]
    operators = {op for step in steps for op in step}
    by_operator = {op: statistics.median(step[op] for step in steps) / 1e3 for op in operators}
    parts = [subject.describe() for subject in pair]
    applied: Counter[str] = Counter()
    left_over: Counter[str] = Counter()
    for subject, part in zip(pair, parts, strict=True):
        applied.update(part["applied"])
        left_over.update(count_left_over(subject.blocks[0].exported.model.graph))
    return {
        "set": name,
        "kernel_ms": statistics.median(sum(step.values()) for step in steps) / 1e3,
        "ms_by_operator": {
            op: round(ms, 3) for op, ms in sorted(by_operator.items(), key=lambda i: -i[1])[:12]
        },
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
