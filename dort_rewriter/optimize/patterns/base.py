"""What a rule is: it looks at one node, and answers with a match, a refusal, or nothing.

The docstring of a rule is the rewrite it stands for. ``match`` has its guards first and never
changes the graph; the effect is in ``Match.build``, called once the match is accepted.

NOTE: rules do not stand on onnxscript's rewriter: it tries every rule on every node, 2 to 3 ms a
rule on a graph of 200 nodes, and its patterns cannot replace a result that is used elsewhere, as
training graphs need. Rules here are looked up by the operator of their root.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import onnx_ir as ir

if TYPE_CHECKING:
    from dort_rewriter.graph.writer import Writer
    from dort_rewriter.optimize.view import GraphView

__all__ = ["GraphPass", "Match", "Refusal", "Rule"]


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


class Rule(ABC):
    """A rewrite around one node. The name of the class is the name of the rule."""

    roots: ClassVar[tuple[str, ...]]
    """Operators at which matching starts: ``"Add"``, ``"com.microsoft::FusedMatMul"``."""
    reads: ClassVar[tuple[str, ...]] = ()
    """Operators, one of which has to make an input of the root: a node without is not shown to the
    rule. () for a rule that has to see for itself."""
    lowers: ClassVar[str] = "nodes"
    """What every application makes smaller, so that applying a set ends: ``"nodes"`` is checked
    by the tests of the rule, anything else is said in words."""
    late: ClassVar[bool] = False
    """Whether it is tried once all else is at rest: other rules look for what it takes away."""

    @abstractmethod
    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        """What to replace; a refusal for a near miss; None when the nodes do not fit."""

    @property
    def name(self) -> str:
        """The name used in selections and reports."""
        return type(self).__name__


class GraphPass(ABC):
    """A rewrite of the whole graph, for what looking at one node cannot tell."""

    late: ClassVar[bool] = False
    """Whether it runs once all else is at rest: what it writes is of no use to other rules."""

    @abstractmethod
    def run(self, graph: GraphView) -> int:
        """Change the graph and return how many times; 0 when nothing was left to do."""

    @property
    def name(self) -> str:
        """The name used in selections and reports."""
        return type(self).__name__
