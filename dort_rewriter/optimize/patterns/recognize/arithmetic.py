"""Sums and products, whose inputs stand in any order, and values times a number."""

from __future__ import annotations

import math
from collections.abc import Iterator

import onnx_ir as ir

from dort_rewriter.optimize.view import GraphView, operator

__all__ = ["factors", "number_of", "scaled"]


def factors(node: ir.Node | None) -> Iterator[tuple[ir.Value, ir.Value]]:
    """The inputs of a commutative node in both orders; none of no node."""
    a, b = (None, None) if node is None else node.inputs
    if a is not None and b is not None:
        yield a, b
        yield b, a


def number_of(value: ir.Value | None, graph: GraphView) -> float | None:
    """The constant of one element that a value is, when it is a finite number."""
    number = graph.scalar(value)
    if isinstance(number, bool) or not isinstance(number, int | float):
        return None
    return number if math.isfinite(number) else None


def scaled(node: ir.Node | None, graph: GraphView) -> tuple[ir.Value, float] | None:
    """x and s of a node that is ``x * s`` or ``x / (1 / s)``, with the rank of x; s is not 0.

    NOTE: a quotient of integers is no product.
    """
    if node is None or operator(node) not in ("Mul", "Div"):
        return None
    is_quotient = node.op_type == "Div"
    for x, constant in list(factors(node))[: 1 if is_quotient else 2]:
        number = number_of(constant, graph)
        if not number or (is_quotient and isinstance(number, int)):
            continue
        if not (rank := graph.rank(constant) or 0) or rank <= (graph.rank(x) or 0):
            return x, 1 / number if is_quotient else number
    return None
