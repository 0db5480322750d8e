"""The order of work on one model: rules to their fixed point, passes, until both rest."""

from __future__ import annotations

import logging
import time

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from dort_rewriter import env
from dort_rewriter.errors import OptionError
from dort_rewriter.optimize.annotation import refine_shapes
from dort_rewriter.optimize.applications import ApplicationWriter
from dort_rewriter.optimize.checking import MakeSession, RuleCheck
from dort_rewriter.optimize.order import order_by_memory
from dort_rewriter.optimize.patterns.base import GraphPass, Rule
from dort_rewriter.optimize.patterns.standard.constants import ConstantFolding
from dort_rewriter.optimize.report import OptimizeReport
from dort_rewriter.optimize.rewriting import Rewriting
from dort_rewriter.optimize.selection import select
from dort_rewriter.optimize.view import GraphView, KernelQuery
from dort_rewriter.options import OptimizationOptions

__all__ = ["optimize"]

ORDERS = (None, "memory")

_TURNS = 100
"""Of rules and passes, before it is said that they undo each other."""

logger = logging.getLogger(__name__)


def optimize(
    model: ir.Model,
    options: OptimizationOptions,
    *,
    has_kernel: KernelQuery,
    make_session: MakeSession | None = None,
) -> OptimizeReport:
    """Change a model in place as the options say, and return what was done.

    ``make_session`` is asked for a session where rules are checked (``check_rules``).
    """
    start = time.perf_counter()
    if options.order not in ORDERS:
        raise OptionError(f"order={options.order!r} is none of {', '.join(map(repr, ORDERS))}.")
    report = OptimizeReport(nodes_before=model.graph.num_nodes())
    chosen = select(options.patterns)
    if options.constant_folding:
        folding = ConstantFolding(everything=True)
        chosen = [folding, *(rule for rule in chosen if rule.name != folding.name)]
    if chosen and options.remove_unused:
        RemoveUnusedNodesPass()(model)  # else rules take what it removes for a reader
    if chosen:
        view = GraphView(model, processor=options.processor, has_kernel=has_kernel)
        refine_shapes(view)
        is_checked = options.check_rules or env.is_on("DORT_CHECK_RULES")
        check = RuleCheck(model, make_session) if is_checked else None
        _apply(view, chosen, options, report, check)
    if options.remove_unused:
        RemoveUnusedNodesPass()(model)
    if options.order == "memory":
        report.peak_bytes = order_by_memory(model.graph)
    report.nodes_after = model.graph.num_nodes()
    report.seconds = time.perf_counter() - start
    if options.verbose:
        logger.info("%s", report if options.verbose > 1 else report.summary())
    return report


def _apply(
    view: GraphView,
    chosen: list[Rule | GraphPass],
    options: OptimizationOptions,
    report: OptimizeReport,
    check: RuleCheck | None,
) -> None:
    rules = [r for r in chosen if isinstance(r, Rule) and not r.late]
    late_rules = [r for r in chosen if isinstance(r, Rule) and r.late]
    passes = [p for p in chosen if isinstance(p, GraphPass)]
    folder = options.dump_applied_patterns
    observer = ApplicationWriter(view.model, folder) if folder is not None else None
    for _ in range(_TURNS):
        left = -1 if options.max_iter < 0 else max(options.max_iter - report.rounds, 0)
        rewriting = Rewriting(view, rules, report, observer, check)
        _run_rules(rewriting, left, check)
        changed = sum(_run_pass(p, view, report, check) for p in passes if not p.late)
        if not changed and late_rules:
            changed = _run_rules(Rewriting(view, late_rules, report, observer, check), -1, check)
        if not changed:
            changed = sum(_run_pass(p, view, report, check) for p in passes if p.late)
        if not changed and options.remove_unused:
            changed = _remove_unused(view)
        limited = options.max_iter >= 0 and report.rounds >= options.max_iter
        if not changed or limited or rewriting.gave_up:
            return
    logger.warning("Optimization stopped: rules and passes seem to undo each other. %s", report)


def _run_rules(rewriting: Rewriting, rounds: int, check: RuleCheck | None) -> int:
    report = rewriting.report
    before = {r.name: r.matches for r in report.rules.values()}
    done = rewriting.run(rounds)
    if done and check is not None:
        applied = (r.name for r in report.rules.values() if r.matches > before[r.name])
        check.whole(f"The model after {', '.join(applied)}")
    return done


def _remove_unused(view: GraphView) -> int:
    """Remove what a pass left without readers, and return how many nodes that were.

    NOTE: not once all is over: a node that it was the only reader of has another place then.
    """
    before = view.graph.num_nodes()
    RemoveUnusedNodesPass()(view.model)
    return before - view.graph.num_nodes()


def _run_pass(
    work: GraphPass, view: GraphView, report: OptimizeReport, check: RuleCheck | None
) -> int:
    (entry,) = report.entries([work.name])
    start, before = time.perf_counter(), view.graph.num_nodes()
    entry.tried += 1
    changed = work.run(view)
    entry.matches += changed
    entry.removed += max(before - view.graph.num_nodes(), 0)
    entry.seconds += time.perf_counter() - start
    if changed and check is not None:
        check.whole(f"The model after {work.name}")
    return changed
