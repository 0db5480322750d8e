"""What a rule is: it looks at one node, and answers with a match, a refusal, or nothing.

The docstring of a rule is the rewrite it stands for. ``match`` has its guards first and never
changes the graph; the effect is in ``Match.build``, called once the match is accepted, which
writes by an :class:`Emitter`: its nodes wait until the driver finds their place.

NOTE: rules do not stand on onnxscript's rewriter: it tries every rule on every node, 2 to 3 ms a
rule on a graph of 200 nodes, and its patterns cannot replace a result that is used elsewhere, as
training graphs need. Rules here are looked up by the operator of their root.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import onnx_ir as ir

from dort_rewriter.graph.writer import Writer
from dort_rewriter.optimize.view import take_place

if TYPE_CHECKING:
    from dort_rewriter.optimize.view import GraphView


@dataclass(frozen=True)
class Refusal:
    """A near miss: the nodes are there, a condition is not."""

    reason: str
    """The condition, the same words for every node."""
    value: Any = None
    """What was found instead."""


@dataclass(frozen=True)
class Match:
    """Results of the graph, and how to compute them otherwise.

    Dead nodes are removed by the driver: a rule need not ask who else uses
    what lies between its inputs and its results, unless keeping it would make the rewrite useless.
    An output of the model that would be a value with another name keeps its node; those who read
    it read that value.
    """

    replaces: Sequence[ir.Value]
    build: Callable[[Writer], ir.Value | Sequence[ir.Value]]
    """Emits the new nodes and returns one result for each of ``replaces``."""

    @staticmethod
    def of_known(node: ir.Node, value: ir.Value) -> Match:
        """The match of a node whose only result is a value the graph already has."""
        return Match([node.outputs[0]], lambda op: value)


class Rewrite:
    """A rule or a pass. The name of the class is its name."""

    late: ClassVar[bool] = False
    """Whether it is tried once all else is at rest: other rules look for what it takes away, and
    have no use for what it writes."""

    @property
    def name(self) -> str:
        """The name used in selections and reports."""
        return type(self).__name__


class Rule(Rewrite, ABC):
    """A rewrite around one node."""

    roots: ClassVar[tuple[str, ...]]
    """Operators at which matching starts: ``"Add"``, ``"com.microsoft::FusedMatMul"``."""
    reads: ClassVar[tuple[str, ...]] = ()
    """Operators, one of which has to make an input of the root: a node without is not shown to the
    rule; ``"Constant"`` for any constant. () for a rule that has to see for itself."""
    of_type: ClassVar[ir.DataType | None] = None
    """The type of the first result of the nodes that are shown to the rule; None for any."""
    lowers: ClassVar[str] = "nodes"
    """What every application makes smaller, so that applying a set ends: ``"nodes"`` is checked
    by the tests of the rule, anything else is said in words."""

    @abstractmethod
    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        """What to replace; a refusal for a near miss; None when the nodes do not fit."""


class GraphPass(Rewrite, ABC):
    """A rewrite of the whole graph, for what looking at one node cannot tell."""

    last: ClassVar[bool] = False
    """Whether it runs at the very end: it changes the order of the nodes and nothing else."""

    @abstractmethod
    def run(self, graph: GraphView) -> int:
        """Change the graph and return how many times; 0 when nothing was left to do."""


class Emitter(Writer):
    """Collects the nodes of one application."""

    def __init__(self, graph: ir.Graph, opset: int) -> None:
        super().__init__(graph, opset)
        self.nodes: list[ir.Node] = []
        self.assumed: dict[ir.Value, ir.TypeProtocol | None] = {}
        """Results whose types only their inputs say, and these types."""
        self._adopt_constants()
        self._named = len(graph.initializers)

    def begin(self, provenance: Mapping[str, str]) -> None:
        """Start an application; its nodes say where they come from."""
        self.nodes, self.assumed = [], {}
        self.provenance = provenance

    def call(self, name: str, /, *inputs: Any, domain: str = "", **options: Any) -> Any:
        """Emit a node. The first result of one of another domain has the type of its first input
        unless the rule, or what it replaces, says otherwise."""
        results = super().call(name, *inputs, domain=domain, **options)
        first = results[0] if isinstance(results, tuple) else results
        if first.type is None and isinstance(inputs[0], ir.Value):
            first.type = self.assumed[first] = inputs[0].type
        return results

    def _adopt_constants(self) -> None:
        for value in self.graph.initializers.values():
            if value.const_value is not None and not value.is_graph_input():
                self.adopt(value)

    def _place(self, node: ir.Node) -> None:
        self.nodes.append(node)

    def _key(self, *args: Any) -> None:
        """Nodes are not shared between applications: those of an earlier one may be gone."""
        return

    def _constant_name(self) -> str:
        while (name := f"constant_{self._named}") in self.graph.initializers:
            self._named += 1
        return name


class Replacer:
    """Puts other nodes in the place of one, whatever graph of a model it stands in."""

    def __init__(self, opset: int, **notes: str) -> None:
        self.opset = opset
        self.notes = notes
        """Written on each node, beside what the one says that it replaces."""
        self._emitters: dict[int, Emitter] = {}

    def replace(self, node: ir.Node, write: Callable[[Emitter], Any]) -> bool:
        """Put what a function writes in the place of a node, unless that is None.

        It gives a result for each of those of the node, or for the first of them.
        """
        graph = node.graph
        assert isinstance(graph, ir.Graph)
        emitter = self._emitters.get(id(graph))
        if emitter is None:
            emitter = self._emitters[id(graph)] = Emitter(graph, self.opset)
        emitter.begin({**node.metadata_props, **self.notes})
        made = write(emitter)
        if made is None:
            return False
        graph.insert_before(node, emitter.nodes)
        results = made if isinstance(made, list | tuple) else (made,)
        for old, new in zip(node.outputs, results, strict=False):
            if not old.uses() and not old.is_graph_output():
                continue
            if new.producer() not in emitter.nodes:  # a value the graph has: keep its name
                graph.insert_before(node, [copy := ir.node("Identity", [new])])
                new = copy.outputs[0]
            take_place(old, new)
        graph.remove(node, safe=True)
        return True
