"""Powers with a small constant exponent: Pow is many times slower than what it stands for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from dort_rewriter.graph.writer import Writer
from dort_rewriter.optimize.patterns.base import Match, Refusal, Rule
from dort_rewriter.optimize.view import GraphView

__all__ = ["PowToMul"]


def _square(op: Writer, x: ir.Value) -> ir.Value:
    result: ir.Value = op.Mul(x, x)
    return result


_BUILD: dict[float, Callable[[Writer, ir.Value], Any]] = {
    1.0: lambda op, x: x,
    2.0: lambda op, x: op.Mul(x, x),
    3.0: lambda op, x: op.Mul(op.Mul(x, x), x),
    4.0: lambda op, x: _square(op, op.Mul(x, x)),
    0.5: lambda op, x: op.Sqrt(x),
    -1.0: lambda op, x: op.Reciprocal(x),
    1.5: lambda op, x: op.Mul(x, op.Sqrt(x)),
    -0.5: lambda op, x: op.Reciprocal(op.Sqrt(x)),
}


_SUMS = ("ReduceMean", "ReduceSum")
_DEPTH = 8
"""How far back a sign is looked for."""


class PowToMul(Rule):
    """``Pow(x, 2) -> Mul(x, x)``   and so on for the exponents 1, 3, 4, -1; the roots 1/2, 3/2,
    -1/2 of what is never below zero.

    NOTE: the powers of -0.0 and of minus infinity to a root are those of their opposites, 0.0 and
    infinity; roots have -0.0 and NaN.
    """

    roots = ("Pow",)
    lowers = "Pow nodes"

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        """What to replace."""
        x, exponent = node.inputs
        number = graph.scalar(exponent)
        if x is None or number is None or x.dtype is None or (graph.rank(exponent) or 0) > 0:
            return None
        build = _BUILD.get(float(number))
        if build is None:
            return Refusal("the exponent is none of 1, 2, 3, 4, 1/2, 3/2, -1, -1/2", number)
        if not x.dtype.is_floating_point() and number not in (1, 2, 3, 4):
            return Refusal("a root of integers", x.dtype)
        if not float(number).is_integer() and not _is_never_below_zero(x, graph):
            return Refusal("a root of what may be -0.0 or minus infinity", x.name)
        return Match([node.outputs[0]], lambda op: build(op, x))


def _is_never_below_zero(x: ir.Value | None, graph: GraphView, depth: int = _DEPTH) -> bool:
    """Whether all numbers are 0.0, more, or NaN: squares, their sums, and the like."""
    node = graph.producer(x)
    if node is None:
        constant = graph.constant(x)
        return constant is not None and not np.signbit(constant).any()
    a, b = (*node.inputs, None, None)[:2]
    kind = "" if node.domain else node.op_type
    if kind in ("Abs", "Exp", "ReduceSumSquare"):
        return True
    if kind == "Mul" and a is b:
        return True
    if kind == "Pow":
        return graph.scalar(b) == 2
    known = [a, b] if kind == "Add" else [a] if kind in _SUMS else []
    return bool(known and depth) and all(_is_never_below_zero(v, graph, depth - 1) for v in known)
