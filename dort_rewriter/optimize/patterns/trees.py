"""TreeRule: a rule whose nodes are a tree, written as two expressions.

``pattern`` writes the nodes to look for, ``replacement`` those that stand for them; their
parameters are the values that both read. What a rule has to know besides is in ``check``. Rules
over lists of nodes, or regions, are classes of their own: see :class:`Rule`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import EllipsisType
from typing import Any, ClassVar

import onnx_ir as ir

from dort_rewriter.optimize.patterns.base import Match, Refusal, Rule
from dort_rewriter.optimize.patterns.recognize.operands import number_of
from dort_rewriter.optimize.view import GraphView, operator

_COMMUTATIVE = frozenset("Add And Equal Max Min Mul Or Xor".split())
"""Operators whose two inputs may stand in either order."""


@dataclass(frozen=True, eq=False)
class Leaf:
    """A value that a pattern reads: any, or a finite number that is known."""

    name: str
    is_number: bool


@dataclass(frozen=True, eq=False)
class Tree:
    """A node of a pattern; the same object in two places is the same node."""

    op: str
    inputs: tuple[Tree | Leaf | EllipsisType, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    name: str | None = None
    alone: bool = False


class PatternOps:
    """Writes patterns: ``op.Add(x, op.Neg(y))``.

    ``...`` as the last input stands for whatever follows. An attribute that is given has to have
    that value; others may have any.
    """

    def __getattr__(self, op_type: str) -> Callable[..., Tree]:
        """Nodes of a standard operator."""
        return functools.partial(self.call, op_type)

    def call(self, op_type: str, *inputs: Any, domain: str = "", **attributes: Any) -> Tree:
        """A node of an operator of any domain."""
        name = f"{domain}::{op_type}" if domain else op_type
        return Tree(name, inputs, attributes)

    def alone(self, tree: Tree) -> Tree:
        """A node whose result nothing else reads: the rule is of no use otherwise."""
        return replace(tree, alone=True)

    def named(self, name: str, tree: Tree) -> Tree:
        """A node that ``check`` and ``replacement`` take as a parameter of this name."""
        return replace(tree, name=name)


Found = dict[Any, Any]
"""What leaves, and trees, stand for; a number for a leaf that is one."""


class TreeRule(Rule):
    """A rule for a tree of nodes that ends at its root, whose only result is replaced."""

    @staticmethod
    def pattern(op: PatternOps, *leaves: Any) -> Tree | Sequence[Tree]:
        """The nodes to look for; of several trees, the first that fits.

        A parameter annotated ``float`` is a constant of one finite number, any other a value; one
        that stands in several places is the same value.
        """
        raise NotImplementedError

    @staticmethod
    def replacement(op: Any, *leaves: Any) -> ir.Value:
        """Write the nodes that stand for the tree, by the names of the leaves and named nodes.

        A parameter ``result`` is the value that is replaced.
        """
        raise NotImplementedError

    @staticmethod
    def check(graph: GraphView, *leaves: Any) -> Refusal | bool | None:
        """Why the tree is left as it is: a refusal, or False without a word; None or True if it
        is not. Its parameters are those of ``replacement``."""
        return None

    roots: ClassVar[tuple[str, ...]]
    _trees: ClassVar[tuple[Tree, ...]]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Read the pattern once; functions without ``self`` need not be called static."""
        super().__init_subclass__(**kwargs)
        for name in ("pattern", "replacement", "check"):
            if inspect.isfunction(written := vars(cls).get(name)):
                setattr(cls, name, staticmethod(written))
        leaves = []
        for name, parameter in list(inspect.signature(cls.pattern).parameters.items())[1:]:
            is_number = parameter.annotation in (float, "float")
            leaves.append(Leaf(name, is_number))
        trees = cls.pattern(PatternOps(), *leaves)
        cls._trees = (trees,) if isinstance(trees, Tree) else tuple(trees)
        cls.roots = tuple(dict.fromkeys(t.op for t in cls._trees))
        inner = [[i.op for i in t.inputs if isinstance(i, Tree)] for t in cls._trees]
        if all(inner):
            cls.reads = tuple(dict.fromkeys(op for ops in inner for op in ops))

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        refusal = None
        result = node.outputs[0]
        for tree in self._trees:
            if tree.op != operator(node):
                continue
            for found in _fit(tree, node, graph, {}):
                if isinstance(found, Refusal):
                    refusal = refusal or found
                    continue
                given = {k.name: v for k, v in found.items() if k.name} | {"result": result}
                verdict = _call(self.check, graph, given)
                if verdict is None or verdict is True:
                    return Match([result], functools.partial(_call, self.replacement, given=given))
                refusal = refusal or (verdict if isinstance(verdict, Refusal) else None)
        return refusal


def _call(function: Callable[..., Any], first: Any, given: Mapping[str, Any]) -> Any:
    """Call a function with what it has parameters for."""
    names = _parameters(function)
    return function(first, **{name: given[name] for name in names})


@functools.cache
def _parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    listed = list(inspect.signature(function).parameters.values())[1:]
    return tuple(p.name for p in listed if p.kind is not p.VAR_POSITIONAL)


def _fit(tree: Tree, node: ir.Node, graph: GraphView, found: Found) -> Iterator[Found | Refusal]:
    """Yield what the leaves stand for if a node is the root of a tree, each way that it is."""
    for name, wanted in tree.attributes.items():
        if graph.attribute(node, name) != wanted:
            return
    wanted_inputs = tree.inputs
    given = list(node.inputs)
    while given and given[-1] is None:
        given.pop()
    if wanted_inputs and wanted_inputs[-1] is ...:
        wanted_inputs = wanted_inputs[:-1]
        given = given[: len(wanted_inputs)]
    if len(given) != len(wanted_inputs):
        return
    found = {**found, tree: node}
    orders = [given]
    if len(given) == 2 and tree.op in _COMMUTATIVE:
        orders.append(given[::-1])
    for values in orders:
        yield from _fit_inputs(wanted_inputs, values, graph, found)


def _fit_inputs(
    wanted: Sequence[Any], values: Sequence[ir.Value | None], graph: GraphView, found: Found
) -> Iterator[Found | Refusal]:
    if not wanted:
        yield found
        return
    for so_far in _fit_one(wanted[0], values[0], graph, found):
        if isinstance(so_far, Refusal):
            yield so_far
        else:
            yield from _fit_inputs(wanted[1:], values[1:], graph, so_far)


def _fit_one(
    wanted: Tree | Leaf, value: ir.Value | None, graph: GraphView, found: Found
) -> Iterator[Found | Refusal]:
    if value is None:
        return
    if isinstance(wanted, Leaf):
        stands: Any = number_of(value, graph) if wanted.is_number else value
        if stands is not None and (wanted not in found or _is_same(found[wanted], stands)):
            yield {**found, wanted: stands}
        return
    node = value.producer()
    if node is None or operator(node) != wanted.op or value is not node.outputs[0]:
        return
    if wanted in found:
        if found[wanted] is node:
            yield found
        return
    for inner in _fit(wanted, node, graph, found):
        if wanted.alone and not isinstance(inner, Refusal) and not graph.used_once(value):
            yield Refusal("others read what is inside", value.name)
        else:
            yield inner


def _is_same(a: Any, b: Any) -> bool:
    return a is b if isinstance(a, ir.Value) else bool(a == b)
