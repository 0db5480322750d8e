"""What each set of rewriting rules does to real graphs: nodes, time in ONNX Runtime, errors.

usage: python scripts/bench_patterns.py [--json FILE] [--models mlp ...] [--sets default ...]
                                        [--seconds S] [--threads N] [--near-misses]

Graphs of small models, forward, backward and inference, with known and with symbolic sizes. The
sessions of all sets of a graph run in turn in one loop, with the same number of threads; medians
are reported. ``none`` is the graph as it is exported; ONNX Runtime's own optimizer is on for all.
With --near-misses: under each row, what rules refused, and why.
The time of each kernel of a model: ``dort-rewriter explain --times``.
Exits with 1 when an error is beyond the tolerance, or a set applied twice still changes something.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir
import torch
from bench_graphs import MODELS, Captured, capture

from dort_rewriter.backends.optimize_onnx import optimize_model
from dort_rewriter.compiler.block import compile_graph
from dort_rewriter.compiler.differences import farthest, largest, limit_of
from dort_rewriter.export.oxs_dispatcher import OxsDispatcher
from dort_rewriter.optimize.rewriting import OptimizeReport
from dort_rewriter.options import OptimizationOptions, OrtBackendOptions
from dort_rewriter.ort_module import describe
from dort_rewriter.plan.recipe import BuiltBlock, Recipe
from dort_rewriter.runtime.providers import CPU

FUSED = (
    *("LayerNormalization", "SimplifiedLayerNormalization", "RMSNormalization"),
    *("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", "LayerNorm", "LayerNormGrad"),
    *("Attention", "MultiHeadAttention", "GroupQueryAttention", "RotaryEmbedding", "Rotary"),
    *("Gelu", "FastGelu", "GeluGrad", "Softmax", "SoftmaxGrad", "SoftmaxGrad_13"),
)
"""Operators that stand for a layer; onnxruntime's own optimizer adds SiLU (QuickGelu) and more."""


class Subject:
    """A graph compiled with one set."""

    def __init__(self, captured: Captured, selection: str | None, threads: int) -> None:
        self.captured = captured
        self.blocks: list[BuiltBlock] = []
        self.options = OptimizationOptions(patterns=selection)
        recipe = Recipe(
            dispatcher=OxsDispatcher(),
            options=OrtBackendOptions(
                optimization=self.options,
                intra_op_threads=threads,
                fallback=False,
                placement={"*": "onnxruntime"},  # rules are compared, not torch's kernels
            ),
            select_providers=lambda graph, args: [(CPU, {})],
            on_built=self.blocks.append,
        )
        self._run = compile_graph(captured.copy(), recipe)
        self.results = self()
        self.reports: list[OptimizeReport] = recipe.trace.reports
        self.fallbacks = sorted({f.op for p in recipe.trace.plans for f in p.fallbacks})
        self.seconds: list[float] = []

    def __call__(self) -> tuple[Any, ...]:
        return tuple(self._run(list(self.captured.args)))

    def time_once(self) -> None:
        start = time.perf_counter()
        self()
        self.seconds.append(time.perf_counter() - start)

    def applied_again(self) -> dict[str, int]:
        """What the same set still does to the models it was applied to."""
        models = [ir.from_proto(ir.to_proto(b.exported.model)) for b in self.blocks]
        return count_matches([optimize_model(m, self.options) for m in models])

    def fused(self) -> dict[str, int]:
        """How many layers are one node each, by operator."""
        nodes = [n.op_type for b in self.blocks for n in b.exported.model.graph]
        return {op: nodes.count(op) for op in FUSED if op in nodes}

    def describe(self) -> dict[str, Any]:
        error, within = compare(self.results, self.captured.expected)
        return {
            "nodes_before": sum(r.nodes_before for r in self.reports),
            "nodes_after": sum(r.nodes_after for r in self.reports),
            "sessions": len(self.blocks),
            "in_torch": self.fallbacks,
            "applied": count_matches(self.reports),
            "fused": self.fused(),
            "applied_again": self.applied_again(),
            "near_misses": near_misses(self.reports),
            "optimize_seconds": sum(r.seconds for r in self.reports),
            "ms": statistics.median(self.seconds) * 1e3 if self.seconds else None,
            "max_error": error,
            "within_tolerance": within,
        }


def count_matches(reports: Sequence[OptimizeReport]) -> dict[str, int]:
    """How often each rule was applied, without those that were not."""
    counts: Counter[str] = Counter()
    for report in reports:
        counts.update({name: r.matches for name, r in report.rules.items() if r.matches})
    return dict(counts)


def near_misses(reports: Sequence[OptimizeReport]) -> dict[str, int]:
    """How often each rule refused, and why, with what it found the first time."""
    counts: Counter[str] = Counter()
    for report in reports:
        for rule in report.rules.values():
            for reason, count in rule.refusals.items():
                counts[f"{rule.name}: {reason} ({rule.examples[reason]})"] += count
    return dict(counts)


def compare(got: Sequence[Any], expected: Sequence[Any]) -> tuple[float, bool]:
    """The largest error, relative to the largest number of its tensor, and if it is small.

    NOTE: element by element, a sum that cancels has no relative error to speak of.
    """
    if len(got) != len(expected):
        return math.inf, False
    errors = [farthest(a, b) / max(1.0, largest(b)) for a, b in zip(got, expected, strict=True)]
    within = all(e <= limit_of(b) for e, b in zip(errors, expected, strict=True))
    return max(errors, default=0.0), within


SETS: dict[str, str | None] = {
    "none": None,
    "default": "default",
    "default+onnxruntime": "default+onnxruntime",
    "default+onnxruntime+experimental": "default+onnxruntime+experimental",
}
SLOWER = 1.03


def measure(captured: Captured, sets: Sequence[str], seconds: float, threads: int) -> Any:
    """A row for each set."""
    subjects = {name: Subject(captured, SETS[name], threads) for name in sets}
    end = time.perf_counter() + seconds
    order = list(subjects.values())
    while time.perf_counter() < end or len(order[0].seconds) < 5:
        random.shuffle(order)  # who runs after whom matters: caches
        for subject in order:
            subject.time_once()
    rows = [
        {"graph": captured.name, "set": name, **subject.describe()}
        for name, subject in subjects.items()
    ]
    reference = next((r for r in rows if r["set"] == "none"), rows[0])
    return [{**row, "speedup": reference["ms"] / row["ms"]} for row in rows]


def graphs_of(name: str, dynamic: bool) -> list[Captured]:
    factory = MODELS[name]
    return [
        *capture(name, factory, dynamic=dynamic, training=True),
        *capture(name, factory, dynamic=dynamic, training=False),
    ]


def print_row(row: dict[str, Any]) -> None:
    marks = [
        *(() if row["within_tolerance"] else ("WRONG",)),
        *(() if not row["applied_again"] else (f"AGAIN {row['applied_again']}",)),
        *(() if row["speedup"] * SLOWER >= 1 else ("slower",)),
        *(() if not row["in_torch"] else (f"in torch: {row['in_torch']}",)),
    ]
    print(
        f"{row['graph']:26} {row['set']:33} {row['nodes_before']:4} -> {row['nodes_after']:4} "
        f"{row['ms']:8.3f} ms x{row['speedup']:.2f} error {row['max_error']:.0e} "
        f"{' '.join(marks)}",
        flush=True,
    )
    if row["fused"]:
        print("    " + ", ".join(f"{op} {count}" for op, count in row["fused"].items()))


def print_near_misses(row: dict[str, Any]) -> None:
    for reason, count in sorted(row["near_misses"].items(), key=lambda pair: -pair[1]):
        print(f"    {count:3} x {reason}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--models", nargs="*", choices=MODELS, default=list(MODELS))
    parser.add_argument("--sets", nargs="*", choices=SETS, default=list(SETS))
    parser.add_argument("--sizes", nargs="*", choices=["static", "dynamic"], default=None)
    parser.add_argument("--seconds", type=float, default=1.0, help="per graph, for all sets")
    parser.add_argument("--threads", type=int, default=1, help="of a session")
    parser.add_argument("--near-misses", action="store_true", help="what rules refused, and why")
    arguments = parser.parse_args()
    report: dict[str, Any] = {"torch": torch.__version__, "onnxruntime": describe()}
    report["threads"] = arguments.threads
    print(f"{describe()}, torch {torch.__version__}, {arguments.threads} thread(s) a session")
    report["rows"] = rows = []
    for name in arguments.models:
        for size in arguments.sizes or ("static", "dynamic"):
            for captured in graphs_of(name, dynamic=size == "dynamic"):
                for row in measure(captured, arguments.sets, arguments.seconds, arguments.threads):
                    print_row(row)
                    if arguments.near_misses:
                        print_near_misses(row)
                    rows.append(row)
    wrong = any(row["applied_again"] or not row["within_tolerance"] for row in rows)
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2), encoding="utf-8")
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
