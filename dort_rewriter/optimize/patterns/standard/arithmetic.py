"""Arithmetic that changes nothing, or that one node can do for two.

Of factors that are constants, only powers of two are moved or merged: they change the exponent of
a number and nothing else, so that every product is rounded as before, short of overflow and of
numbers below the normal ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from dort_rewriter.dtypes import holds
from dort_rewriter.graph.shapes import same
from dort_rewriter.graph.writer import Writer
from dort_rewriter.optimize.patterns.base import Match, Refusal, Rule
from dort_rewriter.optimize.patterns.recognize.operands import factors, number_of, scaled
from dort_rewriter.optimize.patterns.trees import PatternOps, Tree, TreeRule
from dort_rewriter.optimize.view import GraphView


class CastCast(TreeRule):
    """``Cast(Cast(x)) -> Cast(x)``   when the type between holds every value of the first."""

    @staticmethod
    def pattern(op: PatternOps, x: ir.Value) -> Tree:
        return op.Cast(op.named("first", op.Cast(x)))

    @staticmethod
    def check(
        graph: GraphView, x: ir.Value, first: ir.Node, result: ir.Value
    ) -> Refusal | bool | None:
        between = first.outputs[0].dtype
        if x.dtype is None or between is None or result.dtype is None:
            return False
        if not holds(between, x.dtype):
            return Refusal("the type between rounds", f"{x.dtype} -> {between}")
        return None

    @staticmethod
    def replacement(op: Writer, x: ir.Value, result: ir.Value) -> ir.Value:
        assert result.dtype is not None
        return op.cast(x, result.dtype)


_MOVES = ("Expand", "Flatten", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze")


class CastOpCast(Rule):
    """``Cast(Transpose(Cast(x))) -> Transpose(x)``   when the type of ``x`` comes back.

    For any operator that moves elements, when the type between holds every value of the first.
    """

    roots = ("Cast",)
    reads = _MOVES

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        moved = node.inputs[0]
        move = graph.producer(moved, *_MOVES)
        first = None if move is None else graph.producer(move.inputs[0], "Cast")
        if move is None or first is None or moved is None or (x := first.inputs[0]) is None:
            return None
        if x.dtype is None or x.dtype != node.outputs[0].dtype:
            return None
        between = moved.dtype
        if between is None or not holds(between, x.dtype):
            return Refusal("the type between rounds", f"{x.dtype} -> {between}")
        if not graph.used_once(moved):
            return Refusal("the result of the type between is needed", moved.name)
        return Match([node.outputs[0]], lambda op: op.again(move, x, *move.inputs[1:]))


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
    reads = ("Constant",)

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
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


class AddNeg(TreeRule):
    """``Add(x, Neg(y)) -> Sub(x, y)``   and ``Sub(x, Neg(y)) -> Add(x, y)``."""

    @staticmethod
    def pattern(op: PatternOps, x: ir.Value, y: ir.Value) -> Sequence[Tree]:
        return (
            op.named("root", op.Add(x, op.alone(op.Neg(y)))),
            op.named("root", op.Sub(x, op.alone(op.Neg(y)))),
        )

    @staticmethod
    def replacement(op: Writer, x: ir.Value, y: ir.Value, root: ir.Node) -> ir.Value:
        return op.Sub(x, y) if root.op_type == "Add" else op.Add(x, y)


class WhereConstant(Rule):
    """``Where(True, a, b) -> a``   and so on, when the result is no larger."""

    roots = ("Where",)
    reads = ("Constant",)

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        condition, a, b = node.inputs
        for chosen, x in ((True, a), (False, b)):
            if x is not None and _is_filled(condition, chosen, graph):
                if not graph.same_shape(x, node.outputs[0]):
                    return Refusal("the result is larger than what is chosen", str(x.shape))
                return Match.of_known(node, x)
        return None


def _is_filled(value: ir.Value | None, number: float, graph: GraphView) -> bool:
    """Whether a value is a constant made of one number."""
    array = graph.constant(value, _LIMIT)
    return array is not None and array.size > 0 and bool(np.all(array == number))


_LARGEST = 2.0**60
"""Beyond, a product of factors is no number of float32 any more."""


class DivToMul(TreeRule):
    """``Div(x, 2) -> Mul(x, 0.5)``   for powers of two: a product is faster."""

    lowers = "Div nodes"

    @staticmethod
    def pattern(op: PatternOps, x: ir.Value, divisor: float) -> Tree:
        return op.named("quotient", op.Div(x, divisor))

    @staticmethod
    def check(
        graph: GraphView, x: ir.Value, divisor: float, quotient: ir.Node
    ) -> Refusal | bool | None:
        if not _is_float(x):
            return False
        if not _is_power_of_two(divisor):
            return Refusal("the divisor is no power of two", divisor)
        if scaled(quotient, graph) is None:
            return Refusal("the divisor makes the result larger", divisor)
        return None

    @staticmethod
    def replacement(op: Writer, x: ir.Value, divisor: float) -> ir.Value:
        return op.Mul(x, 1.0 / divisor)


class MulMulScalar(Rule):
    """``Mul(Mul(x, 3), 2) -> Mul(x, 6)``   when one of the factors is a power of two."""

    roots = ("Mul",)
    reads = ("Mul",)

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        if (outer := scaled(node, graph)) is None:
            return None
        product, c = outer
        if (inner := scaled(graph.producer(product, "Mul"), graph)) is None:
            return None
        x, d = inner
        if not graph.used_once(product):
            return Refusal("the inner product is needed", product.name)
        if not _is_exact(c, d):
            return Refusal("neither factor is a power of two", (c, d))
        return Match([node.outputs[0]], lambda op: op.Mul(x, c * d))


class MulMulMul(Rule):
    """``Mul(Mul(Mul(x, 3), y), 2) -> Mul(Mul(x, 6), y)``   when a factor is a power of two."""

    roots = ("Mul",)
    reads = ("Mul",)

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        if (outer := scaled(node, graph)) is None:
            return None
        value, c = outer
        product = graph.producer(value, "Mul")
        if product is None or not _is_float(value):
            return None
        for inner, y in factors(product):
            if (found := scaled(graph.producer(inner, "Mul"), graph)) is None:
                continue
            x, d = found
            if not graph.used_once(value) or not graph.used_once(inner):
                return Refusal("a product between is needed", value.name)
            if not _is_power_of_two(c):
                return Refusal("the outer factor is no power of two", c)
            if not _is_exact(c, d):
                return Refusal("the factors are too far from 1", (c, d))
            return Match([node.outputs[0]], lambda op: op.Mul(op.Mul(x, c * d), y))  # noqa: B023
        return None


class ScaleSmaller(Rule):
    """``Mul(a, Mul(b, 2)) -> Mul(Mul(a, 2), b)``   when ``a`` broadcasts: it has fewer elements.

    Also when ``a`` has a factor of its own: the two become one.
    """

    roots = ("Mul",)
    reads = ("Mul",)
    lowers = "elements multiplied by a constant"

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        for a, operand in factors(node):
            if (found := scaled(graph.producer(operand, "Mul"), graph)) is None:
                continue
            b, c = found
            is_scaled = scaled(graph.producer(a, "Mul"), graph) is not None
            if number_of(a, graph) is not None or not (is_scaled or _is_smaller(a, b, graph)):
                return None
            if not graph.used_once(operand):
                return Refusal("the scaled operand is needed", operand.name)
            if not _is_power_of_two(c) or not _is_float(b):
                return Refusal("the factor is no power of two", c)
            return Match([node.outputs[0]], lambda op: op.Mul(op.Mul(a, c), b))  # noqa: B023
        return None


def _is_float(value: ir.Value) -> bool:
    return value.dtype in (ir.DataType.FLOAT, ir.DataType.DOUBLE)


def _is_power_of_two(number: float) -> bool:
    return abs(math.frexp(number)[0]) == 0.5 and 1 / _LARGEST <= abs(number) <= _LARGEST


def _is_exact(c: float, d: float) -> bool:
    """Whether the product of two factors is rounded nowhere."""
    if isinstance(c, int) and isinstance(d, int):
        return abs(c * d) < 2**31
    return (_is_power_of_two(c) or _is_power_of_two(d)) and (
        1 / _LARGEST <= abs(c * d) <= _LARGEST
    )


def _is_smaller(a: ir.Value, b: ir.Value, graph: GraphView) -> bool:
    """Whether a value broadcasts to another, and has fewer elements."""
    small, large = graph.dims(a), graph.dims(b)
    if small is None or large is None or len(small) > len(large):
        return False
    small = (1,) * (len(large) - len(small)) + small
    pairs = list(zip(small, large, strict=True))
    return all(s == 1 or same(s, d) for s, d in pairs) and any(s == 1 != d for s, d in pairs)
