"""The order of work on one model: the chosen rules to their fixed point, passes, until both rest.

A selection names rules and passes: ``"default+onnxruntime-CastCast"``, or a list. Shapes that are
not known yet are written down once, before rules ask for them.
"""

from __future__ import annotations

import difflib
import functools
import logging
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from dort_rewriter import env
from dort_rewriter.errors import OptionError
from dort_rewriter.graph.shapes import Dim, broadcast, infer_shape, missing_size
from dort_rewriter.optimize.applications import ApplicationWriter
from dort_rewriter.optimize.checking import MakeSession, RuleCheck
from dort_rewriter.optimize.order import order_by_memory
from dort_rewriter.optimize.patterns import kernels, onnxruntime, standard
from dort_rewriter.optimize.patterns.base import GraphPass, Rewrite, Rule
from dort_rewriter.optimize.patterns.standard.constants import ConstantFolding
from dort_rewriter.optimize.rewriting import OptimizeReport, Rewriting, RuleReport
from dort_rewriter.optimize.view import GraphView, KernelQuery
from dort_rewriter.options import OptimizationOptions

logger = logging.getLogger(__name__)

Item = str | Rewrite | type[Rewrite]
Selection = Item | Sequence[Item] | None

SETS: Mapping[str, Sequence[type[Rewrite]]] = {
    "default": standard.RULES,
    "onnxruntime": onnxruntime.RULES,
    "kernels": kernels.RULES,
    "experimental": kernels.RULES,
}
"""Every rule and pass, in the order they are tried. ``experimental`` is ``kernels`` as it was
called first: nothing else is in it, and nothing that is not measured."""

RETIRED = frozenset(
    (
        "AddMulTranspose BatchNormProduct ClipClip ConcatConcat ConcatSlice ExpandExpand "
        "MaskedShapeScatterND NotNot NotWhere PowToMul RotaryTranspose SliceSlice SplitConcat "
        "TriMatrix"
    ).split()
)
"""Names of rules that were published and do nothing now: they gained nothing on any whole program,
no graph of torch needs them, or onnxruntime or another rule does the same."""


@functools.cache
def _known() -> Mapping[str, type[Rewrite]]:
    return {kind.__name__: kind for kinds in SETS.values() for kind in kinds}


def get_pattern_list(positive: Selection = "default", negative: Selection = None) -> list[Rewrite]:
    """The rules and passes that ``positive`` names, less those that ``negative`` does.

    Args:
        positive: a string such as ``"default+onnxruntime-CastCast"``, or a list of names, classes
            and instances.
        negative: the same, of what is left out.

    Raises:
        OptionError: a name is unknown.
    """
    chosen: dict[str, Rewrite] = {}
    for sign, item in _items(positive):
        for rule in _resolve(item):
            if sign == "+":
                chosen.setdefault(rule.name, rule)
            else:
                chosen.pop(rule.name, None)
    for sign, item in _items(negative):
        for rule in _resolve(item) if sign == "+" else ():
            chosen.pop(rule.name, None)
    return list(chosen.values())


def asks_for_kernels(patterns: Selection) -> bool:
    """Whether a selection names the set ``kernels``, and does not take it away again: the
    exporter then writes operators of our own, which no rule could find in a model."""
    wanted = False
    for sign, item in _items(patterns):
        if item in ("kernels", "experimental"):
            wanted = sign == "+"
    return wanted


def _items(selection: Selection) -> Iterable[tuple[str, Item]]:
    if selection is None:
        return
    if isinstance(selection, type | Rewrite):
        yield "+", selection
        return
    if not isinstance(selection, str):
        if not isinstance(selection, Iterable):
            raise OptionError(f"{selection!r} is neither the name of a pattern nor a pattern.")
        for item in selection:
            yield from _items(item)
        return
    text = selection.strip()
    parts = re.findall(r"([+\-]?)\s*([A-Za-z0-9_]+)\s*,?", text)
    if "".join(sign + name for sign, name in parts) != re.sub(r"[\s,]", "", text):
        raise OptionError(
            f"{selection!r} is no selection of patterns: 'default+onnxruntime-Name'."
        )
    for sign, name in parts:
        yield sign or "+", name


def _resolve(item: Any) -> list[Rewrite]:
    if isinstance(item, Rewrite):
        return [item]
    if isinstance(item, type) and issubclass(item, Rewrite):
        return [item()]
    if not isinstance(item, str):
        raise OptionError(f"{item!r} is neither the name of a pattern nor a pattern.")
    if item in SETS:
        return [kind() for kind in SETS[item]]
    if item in RETIRED:
        return []
    if (kind := _known().get(item)) is not None:
        return [kind()]
    names = [*SETS, *_known()]
    close = difflib.get_close_matches(item, names, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"sets: {', '.join(SETS)}."
    raise OptionError(f"Unknown pattern {item!r}: {hint}")


def _refine_shapes(graph: GraphView) -> None:
    """Complete the shape of each first result, the sizes that shapes computed at run time hold
    included; what is known stays."""
    for node in graph.graph:
        if node.op_type == "Cast":
            _complete_source(node)
        if node.domain or "axes" in node.attributes:  # axes are inputs where infer_shape knows
            continue
        result = node.outputs[0]
        if result.shape is not None and all(_is_known(d) for d in result.shape):
            continue
        attributes = {k: v.value for k, v in node.attributes.items()}
        dims = _follow_target(node, graph)
        if dims is None:
            dims = infer_shape(node.op_type, node.inputs, attributes)
        if dims is None or (result.shape is not None and len(result.shape) != len(dims)):
            continue
        if result.shape is not None:
            dims = tuple(a if _is_known(a) else b for a, b in zip(result.shape, dims, strict=True))
        result.shape = ir.Shape(dims)


def _complete_source(cast: ir.Node) -> None:
    """What is cast has the shape of the result: results of our own kernels may have none."""
    source, result = cast.inputs[0], cast.outputs[0]
    if source is not None and source.shape is None and result.shape is not None:
        source.shape = result.shape


def _is_known(dim: Dim) -> bool:
    """NOTE: the shape inference of ONNX gives names to the sizes it does not know."""
    return isinstance(dim, int) or not (dim.value or "unk__").startswith("unk__")


def _follow_target(node: ir.Node, graph: GraphView) -> tuple[Dim, ...] | None:
    """The shape of a result that an input has too, symbols and all."""
    if node.op_type == "ConstantOfShape":
        return graph.sizes(node.inputs[0])
    if node.op_type not in ("Expand", "Reshape") or node.attributes:
        return None
    source, target = graph.dims(node.inputs[0]), graph.sizes(node.inputs[1])
    if source is None or target is None:
        return None
    if node.op_type == "Expand":
        return broadcast([source, target])
    dims = [source[i] if d == 0 and i < len(source) else d for i, d in enumerate(target)]
    if -1 in dims:
        at = dims.index(-1)
        dims[at] = missing_size(source, dims[:at] + dims[at + 1 :])
    return tuple(dims)


ORDERS = (None, "memory")

_TURNS = 100
"""Of rules and passes, before it is said that they undo each other."""


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
    chosen = get_pattern_list(options.patterns)
    if options.constant_folding:
        folding = ConstantFolding(everything=True)
        chosen = [folding, *(rule for rule in chosen if rule.name != folding.name)]
    if chosen and options.remove_unused:
        RemoveUnusedNodesPass()(model)  # else rules take what it removes for a reader
    if chosen:
        view = GraphView(model, has_kernel=has_kernel)
        _refine_shapes(view)
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
    chosen: list[Rewrite],
    options: OptimizationOptions,
    report: OptimizeReport,
    check: RuleCheck | None,
) -> None:
    rules = [r for r in chosen if isinstance(r, Rule) and not r.late]
    late_rules = [r for r in chosen if isinstance(r, Rule) and r.late]
    listed = [p for p in chosen if isinstance(p, GraphPass)]
    runs = {
        p: functools.partial(_run_pass, p, entry, view, check)
        for p, entry in zip(listed, report.entries([p.name for p in listed]), strict=True)
    }
    early, late, last = (
        [run for p, run in runs.items() if (p.late, p.last) == when]
        for when in ((False, False), (True, False), (False, True))
    )
    folder = options.dump_applied_patterns
    observer = ApplicationWriter(view.model, folder) if folder is not None else None
    for _ in range(_TURNS):
        left = -1 if options.max_iter < 0 else max(options.max_iter - report.rounds, 0)
        rewriting = Rewriting(view, rules, report, observer, check)
        _run_rules(rewriting, left, check)
        changed = sum(run() for run in early)
        if not changed and late_rules:
            changed = _run_rules(Rewriting(view, late_rules, report, observer, check), -1, check)
        if not changed:
            changed = sum(run() for run in late)
        if not changed and options.remove_unused:
            changed = _remove_unused(view)
        limited = options.max_iter >= 0 and report.rounds >= options.max_iter
        if not changed or limited or rewriting.gave_up:
            break
    else:
        logger.warning(
            "Optimization stopped: rules and passes seem to undo each other. %s", report
        )
    for run in last:
        run()


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


def _run_pass(work: GraphPass, entry: RuleReport, view: GraphView, check: RuleCheck | None) -> int:
    start, before = time.perf_counter(), view.graph.num_nodes()
    entry.tried += 1
    changed = work.run(view)
    entry.matches += changed
    entry.removed += max(before - view.graph.num_nodes(), 0)
    entry.seconds += time.perf_counter() - start
    if changed and check is not None:
        check.whole(f"The model after {entry.name}")
    return changed
