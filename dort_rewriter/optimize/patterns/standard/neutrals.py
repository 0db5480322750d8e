"""Operands that change nothing, and operators that undo themselves."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from dort_rewriter.graph.writer import Writer
from dort_rewriter.optimize.patterns.base import Match, Refusal, Rule
from dort_rewriter.optimize.patterns.trees import PatternOps, Tree, TreeRule
from dort_rewriter.optimize.view import GraphView

__all__ = ["AddNeg", "NeutralElement", "NotNot", "NotWhere", "WhereConstant"]

_NEUTRAL = {"Add": 0, "Sub": 0, "Mul": 1, "Div": 1, "And": True, "Or": False, "Xor": False}
_ON_THE_RIGHT = frozenset({"Sub", "Div"})
_LIMIT = 4096
"""Elements above which a constant is not looked at."""


class NeutralElement(Rule):
    """``x + 0, x - 0, x * 1, x / 1, x and True, x or False -> x``   when the result is no larger.

    NOTE: ``x * 0`` is not 0 for NaN and infinities; ``-0.0 + 0.0`` is ``0.0``, which ``atan2``,
    ``copysign`` and quotients tell from what it is made of.
    """

    roots = tuple(_NEUTRAL)

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        """What to replace."""
        neutral = _NEUTRAL[node.op_type]
        a, b = node.inputs
        pairs = [(a, b)] if node.op_type in _ON_THE_RIGHT else [(a, b), (b, a)]
        for x, constant in pairs:
            if x is None or not _is_filled(constant, neutral, graph):
                continue
            if not graph.same_shape(x, node.outputs[0]):
                return Refusal("the constant makes the result larger", str(x.shape))
            if _changes_zeros(node, x, constant, graph):
                return Refusal("the sign of a zero may be seen", x.name)
            return Match.of_known(node, x)
        return None


_MADE_WITHOUT_SIGN = frozenset(
    "Abs Exp ReduceL1 ReduceL2 ReduceSumSquare Sigmoid Softmax Softplus".split()
)
"""Operators that never give -0.0."""

_BLIND_TO_SIGN = frozenset(
    "Abs Cos Equal Exp Greater GreaterOrEqual IsInf IsNaN Less LessOrEqual LogSoftmax Sigmoid "
    "Softmax Softplus".split()
)
"""Operators that give the same for 0.0 and -0.0."""


def _changes_zeros(
    node: ir.Node, x: ir.Value, constant: ir.Value | None, graph: GraphView
) -> bool:
    """Whether a sum with zeros makes another zero of -0.0, and somebody may see that."""
    if node.op_type not in ("Add", "Sub"):
        return False
    if x.dtype is not None and not x.dtype.is_floating_point():
        return False
    signs = np.signbit(np.asarray(graph.constant(constant)).astype(np.float64))
    if np.all(signs == (node.op_type == "Add")):
        return False
    maker = x.producer()
    if maker is not None and maker.domain == "" and maker.op_type in _MADE_WITHOUT_SIGN:
        return False
    result = node.outputs[0]
    readers = graph.consumers(result)
    blind = all(n.domain == "" and n.op_type in _BLIND_TO_SIGN for n in readers)
    return result.is_graph_output() or not blind


class NotNot(TreeRule):
    """``Not(Not(x)) -> x``   and ``Neg(Neg(x)) -> x``."""

    @staticmethod
    def pattern(op: PatternOps, x: ir.Value) -> Sequence[Tree]:
        """Two of one operator."""
        return op.Not(op.Not(x)), op.Neg(op.Neg(x))

    @staticmethod
    def replacement(op: Writer, x: ir.Value) -> ir.Value:
        """The value itself."""
        return x


class AddNeg(TreeRule):
    """``Add(x, Neg(y)) -> Sub(x, y)``   and ``Sub(x, Neg(y)) -> Add(x, y)``."""

    @staticmethod
    def pattern(op: PatternOps, x: ir.Value, y: ir.Value) -> Sequence[Tree]:
        """A sum or a difference, whose negative nothing else reads."""
        return (
            op.named("root", op.Add(x, op.alone(op.Neg(y)))),
            op.named("root", op.Sub(x, op.alone(op.Neg(y)))),
        )

    @staticmethod
    def replacement(op: Writer, x: ir.Value, y: ir.Value, root: ir.Node) -> ir.Value:
        """The other of the two."""
        result: ir.Value = op.Sub(x, y) if root.op_type == "Add" else op.Add(x, y)
        return result


class NotWhere(Rule):
    """``Where(Not(c), a, b) -> Where(c, b, a)``   when nothing else reads ``Not(c)``."""

    roots = ("Where",)
    reads = ("Not",)

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        """What to replace."""
        condition, a, b = node.inputs
        negation = graph.producer(condition, "Not")
        if negation is None or condition is None or (c := negation.inputs[0]) is None:
            return None
        readers = graph.consumers(condition)
        if condition.is_graph_output() or any(n.op_type != "Where" for n in readers):
            return Refusal("the negation is needed anyway", condition.name)
        return Match([node.outputs[0]], lambda op: op.Where(c, b, a))


class WhereConstant(Rule):
    """``Where(True, a, b) -> a``   and so on, when the result is no larger."""

    roots = ("Where",)

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        """What to replace."""
        condition, a, b = node.inputs
        for chosen, x in ((True, a), (False, b)):
            if x is not None and _is_filled(condition, chosen, graph):
                if not graph.same_shape(x, node.outputs[0]):
                    return Refusal("the result is larger than what is chosen", str(x.shape))
                return Match.of_known(node, x)
        return None


def _is_filled(value: ir.Value | None, number: float, graph: GraphView) -> bool:
    """Whether a value is a constant made of one number."""
    if value is None or value.const_value is None or value.const_value.size > _LIMIT:
        return False
    array = graph.constant(value)
    return array is not None and array.size > 0 and bool(np.all(array == number))
