"""The driver: it shows nodes to rules until none applies, and carries out what they ask for.

Every node is looked at once; after an application, only its neighbourhood is. A result that is
replaced keeps its name, type and shape; dead nodes are removed.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import onnx_ir as ir

from dort_rewriter.errors import OptimizeError, calling
from dort_rewriter.optimize.checking import RuleCheck
from dort_rewriter.optimize.patterns.base import Emitter, Match, Refusal, Rule
from dort_rewriter.optimize.view import GraphView, take_name

logger = logging.getLogger(__name__)


@dataclass
class RuleReport:
    """What one rule or pass did."""

    name: str
    matches: int = 0
    removed: int = 0
    added: int = 0
    tried: int = 0
    """Nodes it was shown."""
    seconds: float = 0.0
    refusals: Counter[str] = field(default_factory=Counter)
    """Near misses by reason."""
    examples: dict[str, str] = field(default_factory=dict)
    """For each reason, what was found instead, once."""


@dataclass
class OptimizeReport:
    """What one optimization did."""

    rules: dict[str, RuleReport] = field(default_factory=dict)
    nodes_before: int = 0
    nodes_after: int = 0
    rounds: int = 0
    """Times the rules were shown nodes."""
    peak_bytes: tuple[int, int] | None = None
    """Of intermediate results and outputs before and after they were ordered by memory."""
    seconds: float = 0.0

    def entries(self, names: Iterable[str]) -> list[RuleReport]:
        """The entries of rules and passes, by name."""
        return [self.rules.setdefault(name, RuleReport(name)) for name in names]

    def to_dict(self) -> dict[str, Any]:
        """The report as numbers and strings, for JSON."""
        rules = {
            name: {**vars(rule), "refusals": dict(rule.refusals)}
            for name, rule in self.rules.items()
        }
        return {**vars(self), "rules": rules}

    def summary(self) -> str:
        """What was done, without near misses."""
        lines = [
            f"{self.nodes_before} -> {self.nodes_after} nodes in {self.rounds} rounds, "
            f"{self.seconds * 1e3:.1f} ms"
        ]
        if self.peak_bytes is not None:
            lines.append(f"  peak of memory: {self.peak_bytes[0]} -> {self.peak_bytes[1]} bytes")
        lines += [
            f"  {r.name}: {r.matches} applied, -{r.removed} +{r.added} nodes, "
            f"{r.seconds * 1e3:.1f} ms"
            for r in self._ranked()
            if r.matches
        ]
        return "\n".join(lines)

    def __str__(self) -> str:
        near_misses = [
            f"  {r.name}: refused {count} times, {reason} {r.examples[reason]}"
            for r in self._ranked()
            for reason, count in r.refusals.most_common()
        ]
        return "\n".join([self.summary(), *near_misses])

    def _ranked(self) -> list[RuleReport]:
        return sorted(self.rules.values(), key=lambda r: (-r.matches, r.name))


_FEW = 4
"""Readers of a value that are looked at again when one of them is gone."""


@dataclass(frozen=True)
class Application:
    """One application of a rule, about to be carried out."""

    rule: Rule
    removed: Sequence[ir.Node]
    """Still in the graph."""
    added: Sequence[ir.Node]
    """Not yet in the graph."""
    results: Sequence[tuple[ir.Value, ir.Value]]
    """Each value that is replaced, and by what."""


Observer = Callable[[Application], None]
"""Called before an application changes the graph."""


class Rewriting:
    """Rules at work on one graph."""

    def __init__(
        self,
        view: GraphView,
        rules: Iterable[Rule],
        report: OptimizeReport,
        observer: Observer | None = None,
        check: RuleCheck | None = None,
    ) -> None:
        self.view = view
        self.graph = view.graph
        self.report = report
        self.observer = observer
        self.check = check
        self.emitter = Emitter(view.graph, view.opset)
        self._by_root: dict[_Operator, list[_Listed]] = defaultdict(list)
        rules = list(rules)
        names = [type(rule).__name__ for rule in rules]
        for rule, entry in zip(rules, report.entries(names), strict=True):
            listed = _Listed(rule, entry, frozenset(map(_operator, rule.reads)), _guard(rule))
            for root in map(_operator, rule.roots):
                self._by_root[root].append(listed)
        self.gave_up = False
        """Whether rules undid each other for so long that the work was stopped."""
        self._budget = 1000 + 10 * self.graph.num_nodes()

    def run(self, max_rounds: int = -1) -> int:
        """Apply the rules until none applies any more, and return how many applications it took.

        The first round looks at every node, each later one at what the one before it changed, and
        once that is nothing any more at every node again: a rule may look far behind its root.
        """
        applied = seen = 0
        waiting = list(self.graph)
        while waiting and max_rounds != 0:
            max_rounds -= 1
            self.report.rounds += 1
            touched: dict[ir.Node, None] = {}
            for node in waiting:
                while node.graph is self.graph and self._budget >= 0 and self._try(node, touched):
                    applied += 1
                    self._budget -= 1
            waiting = [node for node in touched if node.graph is self.graph]
            if self._budget < 0:
                self.gave_up = True
                logger.warning(
                    "Optimization stopped: rules seem to undo each other. %s", self.report
                )
                break
            if not waiting and applied > seen:
                seen, waiting = applied, list(self.graph)
        return applied

    def _try(self, node: ir.Node, touched: dict[ir.Node, None]) -> bool:
        """Apply the first rule that matches at a node."""
        listed = self._by_root.get((node.domain, node.op_type), ())
        made: set[_Operator] = set()
        for value in node.inputs if listed and node.outputs else ():
            if value is not None and (maker := value.producer()) is not None:
                made.add((maker.domain, maker.op_type))
            elif value is not None and value.const_value is not None:
                made.add(_CONSTANT)
        for rule, entry, reads, guard in listed:
            if reads and made.isdisjoint(reads):
                continue
            if rule.of_type is not None and node.outputs[0].dtype != rule.of_type:
                continue
            start = time.perf_counter()
            entry.tried += 1
            with guard:
                found = rule.match(node, self.view)
                if found is not None and not isinstance(found, Match | Refusal):
                    raise OptimizeError(f"{rule.name}.match gave {found!r}, no Match or Refusal.")
                done = isinstance(found, Match) and self._apply(rule, entry, node, found, touched)
            if isinstance(found, Refusal):
                _count(entry, found)
            entry.seconds += time.perf_counter() - start
            if done:
                return True
        return False

    def _apply(
        self,
        rule: Rule,
        entry: RuleReport,
        node: ir.Node,
        match: Match,
        touched: dict[ir.Node, None],
    ) -> bool:
        emitter = self.emitter
        emitter.begin({**node.metadata_props, "rule": rule.name})
        built = match.build(emitter)
        results = [built] if isinstance(built, ir.Value) else built
        if not isinstance(results, list | tuple) or not all(
            isinstance(v, ir.Value) for v in results
        ):
            raise OptimizeError(f"{rule.name} builds {built!r}, no values of the graph.")
        if len(results) != len(match.replaces):
            raise OptimizeError(f"{rule.name} builds {len(results)} results, not as declared.")
        for old, new in zip(match.replaces, results, strict=True):
            is_assumed = emitter.assumed.get(new) is new.type
            if new.type is None or (is_assumed and old.type is not None):
                new.type = old.type
        if refusal := self._refuse(rule, match.replaces, results):
            if not emitter.nodes and _redirect(match.replaces, results, touched):
                entry.matches += 1
                self._verify(rule, node, results)
                return True
            _count(entry, refusal)
            return False
        dead = _dead_after(match.replaces, results, emitter.nodes)
        place = self._find_place(match.replaces, emitter.nodes, dead)
        if place is None:
            _count(entry, Refusal("no place in the order of the graph", node.name))
            return False
        if self.observer is not None:
            pairs = list(zip(match.replaces, results, strict=True))
            self.observer(Application(rule, dead, emitter.nodes, pairs))
        self.graph.insert_before(place, emitter.nodes)
        for new in emitter.nodes:
            touched[new] = None
        for old, result in zip(match.replaces, results, strict=True):
            self._replace(old, result, touched)
        entry.matches += 1
        entry.added += len(emitter.nodes)
        entry.removed += self._sweep([v.producer() for v in match.replaces], touched)
        self._verify(rule, node, results)
        return True

    def _verify(self, rule: Rule, root: ir.Node, results: Sequence[ir.Value]) -> None:
        """Check what an application wrote, and those who read what it replaced."""
        if self.check is not None:
            readers = [reader for v in results for reader, _ in v.uses()]
            where = f"{root.op_type} {root.name!r}"
            self.check.applied(rule.name, where, [*self.emitter.nodes, *readers])

    def _refuse(
        self, rule: Rule, replaced: Sequence[ir.Value], results: Sequence[ir.Value]
    ) -> Refusal | None:
        """Refuse what ONNX has no way to say; raise on what is wrong."""
        emitted = {id(n) for n in self.emitter.nodes}
        for node in self.emitter.nodes:
            if (reason := _unsafe(node)) is not None:
                return Refusal(reason, rule.name)
        for old, new in zip(replaced, results, strict=True):
            if new.dtype is not None and old.dtype is not None and new.dtype != old.dtype:
                raise OptimizeError(f"{rule.name} turns {old.dtype} into {new.dtype}.")
            if not _fits(old, new):
                raise OptimizeError(f"{rule.name} turns {old.shape} into {new.shape}.")
            if old.is_graph_output() and id(new.producer()) not in emitted:
                producer = new.producer()
                if producer is None or new.is_graph_output():
                    return Refusal("an output of the model has to have its own node", old.name)
        return None

    def _find_place(
        self, replaced: Sequence[ir.Value], nodes: Sequence[ir.Node], dead: Sequence[ir.Node]
    ) -> ir.Node | None:
        """The node to insert before: after all that is read, before all that reads.

        NOTE: a rule that replaces one result reads only what its root could read.
        """
        if len(replaced) == 1:
            return replaced[0].producer()
        new, gone = {id(n) for n in nodes}, {id(n) for n in dead}
        order = {node: i for i, node in enumerate(self.graph)}
        inputs = [v.producer() for n in nodes for v in n.inputs if v is not None]
        reads = [p for p in inputs if p is not None and id(p) not in new]
        uses = [n for v in replaced for n, _ in v.uses()]
        readers = [n for n in uses if id(n) not in new and id(n) not in gone]
        if any(n not in order for n in (*reads, *readers)):
            return None  # in a subgraph
        last = max((order[p] for p in reads), default=-1)
        first = min((order[n] for n in readers), default=len(order))
        producers = [p for v in replaced if (p := v.producer()) is not None]
        places = [n for n in (*producers, *readers) if last < order[n] <= first]
        return min(places, key=order.__getitem__, default=None)

    def _replace(self, old: ir.Value, new: ir.Value, touched: dict[ir.Node, None]) -> None:
        if new is old:
            return
        for reader, _ in old.uses():
            touched[reader] = None
        new.shape = _better(old.shape, new.shape)
        is_output = old.is_graph_output()
        old.replace_all_uses_with(new, replace_graph_outputs=True)
        if is_output or (new.producer() in touched and not new.is_graph_output()):
            take_name(old, new)

    def _sweep(self, nodes: Sequence[ir.Node | None], touched: dict[ir.Node, None]) -> int:
        """Remove the nodes whose results are unused, and then those they alone kept alive.

        Those who still read the others are looked at again: some rules ask for a single reader.
        NOTE: ``remove`` looks at all outputs of the graph each time, so it is called once.
        """
        removed: dict[ir.Node, None] = {}
        waiting = [n for n in nodes if n is not None]
        while waiting:
            node = waiting.pop()
            if node.graph is not self.graph or node in removed:
                continue
            if any(v.uses() or v.is_graph_output() for v in node.outputs):
                touched[node] = None
                readers = [reader for v in node.outputs for reader, _ in v.uses()]
                touched.update(dict.fromkeys(readers if len(readers) < _FEW else ()))
                continue
            waiting += [p for v in node.inputs if v is not None and (p := v.producer())]
            for i in range(len(node.inputs)):
                node.replace_input_with(i, None)
            removed[node] = None
        self.graph.remove(removed)
        return len(removed)


_Operator = tuple[str, str]
"""Its domain, and its name."""

_CONSTANT: _Operator = ("", "Constant")


def _operator(text: str) -> _Operator:
    domain, _, name = text.rpartition("::")
    return domain, name


class _Listed(NamedTuple):
    """A rule, what it did so far, and what decides whether and how it is asked."""

    rule: Rule
    entry: RuleReport
    reads: frozenset[_Operator]
    guard: contextlib.AbstractContextManager[None]


def _guard(rule: Rule) -> contextlib.AbstractContextManager[None]:
    """What a rule is called in: an error of a user's rule differs from one of this package."""
    if type(rule).__module__.partition(".")[0] == __name__.partition(".")[0]:
        return contextlib.nullcontext()
    return calling(f"the rule {rule.name}", type(rule).match)


def _unsafe(node: ir.Node) -> str | None:
    """Tell why onnxruntime may compute a node wrongly.

    NOTE: 1.19 and 1.31 fuse a Transpose into a product with a vector, with wrong numbers; 1.19
    computes an identity Transpose before a MatMul and an Add wrongly.
    """
    shapes = [v.shape for v in node.inputs if v is not None]
    if node.op_type in ("MatMul", "FusedMatMul") and any(
        s is not None and len(s) < 2 for s in shapes
    ):
        return "a product with a vector is fused wrongly"
    order = GraphView.order(node) if node.op_type == "Transpose" else None
    in_order = order is not None and order == sorted(order)
    return "an identity Transpose is computed wrongly" if in_order else None


def _redirect(
    replaced: Sequence[ir.Value], results: Sequence[ir.Value], touched: dict[ir.Node, None]
) -> bool:
    """Let those who read outputs of the model, which keep their nodes, read what replaces them."""
    uses = [
        (use, new)
        for old, new in zip(replaced, results, strict=True)
        for use in old.uses()
        if new is not old
    ]
    for (reader, index), new in uses:
        reader.replace_input_with(index, new)
        touched[reader] = None
    return bool(uses)


def _count(entry: RuleReport, refusal: Refusal) -> None:
    entry.refusals[refusal.reason] += 1
    entry.examples.setdefault(refusal.reason, str(refusal.value))


def _fits(old: ir.Value, new: ir.Value) -> bool:
    if old.shape is None or new.shape is None:
        return True
    if len(old.shape) != len(new.shape):
        return False
    pairs = zip(old.shape, new.shape, strict=True)
    return all(a == b for a, b in pairs if isinstance(a, int) and isinstance(b, int))


def _better(old: ir.Shape | None, new: ir.Shape | None) -> ir.Shape | None:
    """What is known about a shape from two sides."""
    if old is None or new is None:
        return new if old is None else old  # NOTE: the shape of a number is empty, and known
    return ir.Shape(
        [
            a if isinstance(a, int) or (not isinstance(b, int) and a.value is not None) else b
            for a, b in zip(old, new, strict=True)
        ]
    )


def _dead_after(
    replaced: Sequence[ir.Value], results: Sequence[ir.Value], added: Sequence[ir.Node]
) -> list[ir.Node]:
    """The nodes that an application will leave without readers, in reverse order."""
    gone_values = {id(v) for v in replaced} - {id(v) for v in results}
    kept = {id(v) for n in added for v in n.inputs} | {id(v) for v in results}
    dead: dict[ir.Node, None] = {}
    waiting = [p for v in replaced if (p := v.producer()) is not None]
    while waiting:
        node = waiting.pop(0)
        if node in dead or any(not _is_unused(v, gone_values, kept, dead) for v in node.outputs):
            continue
        dead[node] = None
        waiting += [p for v in node.inputs if v is not None and (p := v.producer())]
    return list(dead)


def _is_unused(value: ir.Value, gone: set[int], kept: set[int], dead: dict[ir.Node, None]) -> bool:
    if id(value) in gone:
        return True
    if id(value) in kept or value.is_graph_output():
        return False
    return all(node in dead for node, _ in value.uses())
