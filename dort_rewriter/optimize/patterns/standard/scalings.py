"""Factors that are constants: merged, and applied where there are the fewest elements.

Only powers of two are moved or merged: they change the exponent of a number and nothing else, so
that every product is rounded as before, short of overflow and of numbers below the normal ones.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from dort_rewriter.graph.shapes import same
from dort_rewriter.graph.writer import Writer
from dort_rewriter.optimize.patterns.base import Match, Refusal, Rule
from dort_rewriter.optimize.patterns.recognize.arithmetic import factors, number_of, scaled
from dort_rewriter.optimize.patterns.trees import PatternOps, Tree, TreeRule
from dort_rewriter.optimize.view import GraphView

__all__ = ["DivToMul", "MulMulMul", "MulMulScalar", "ScaleSmaller"]

_LARGEST = 2.0**60
"""Beyond, a product of factors is no number of float32 any more."""


class DivToMul(TreeRule):
    """``Div(x, 2) -> Mul(x, 0.5)``   for powers of two: a product is faster."""

    lowers = "Div nodes"

    @staticmethod
    def pattern(op: PatternOps, x: ir.Value, divisor: float) -> Tree:
        """A quotient by a number."""
        return op.named("quotient", op.Div(x, divisor))

    @staticmethod
    def check(
        graph: GraphView, x: ir.Value, divisor: float, quotient: ir.Node
    ) -> Refusal | bool | None:
        """The product is the same number, and no larger."""
        if not _is_float(x):
            return False
        if not _is_power_of_two(divisor):
            return Refusal("the divisor is no power of two", divisor)
        if scaled(quotient, graph) is None:
            return Refusal("the divisor makes the result larger", divisor)
        return None

    @staticmethod
    def replacement(op: Writer, x: ir.Value, divisor: float) -> ir.Value:
        """A product."""
        result: ir.Value = op.Mul(x, 1.0 / divisor)
        return result


class MulMulScalar(Rule):
    """``Mul(Mul(x, 3), 2) -> Mul(x, 6)``   when one of the factors is a power of two."""

    roots = ("Mul",)
    reads = ("Mul",)

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        """What to replace."""
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
        """What to replace."""
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
        """What to replace."""
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
