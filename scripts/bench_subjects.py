"""A captured graph compiled with one set of rewriting rules: run, timed, compared with torch."""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
from bench_graphs import Captured

from dort_rewriter.backends.optimize_onnx import optimize_model
from dort_rewriter.compiler.block import compile_graph
from dort_rewriter.compiler.differences import farthest, largest, limit_of
from dort_rewriter.export.oxs_dispatcher import OxsDispatcher
from dort_rewriter.optimize.rewriting import OptimizeReport
from dort_rewriter.options import OptimizationOptions, OrtBackendOptions
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
