"""Matrices of two values, split by a diagonal: what causal masks are made of."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from dort_rewriter.kernels.operators import OWN_DOMAIN
from dort_rewriter.optimize.patterns.base import Match, Refusal, Rule
from dort_rewriter.optimize.view import GraphView

__all__ = ["TriMatrix"]

_BELOW = {
    "Less": (True, False, False),
    "LessOrEqual": (True, True, False),
    "Greater": (False, False, True),
    "GreaterOrEqual": (False, True, True),
    "Equal": (False, True, False),
}
"""Where the column compared with the row holds: below the diagonal, on it, above it."""
_STEPS = 16
"""Nodes between a comparison and its Range; models have about four."""


class TriMatrix(Rule):
    """``Where(LessOrEqual(columns, rows), a, b) -> TriMatrix(n, m, a, a, b)``   rows and columns
    0, 1, 2, ... along the last two axes, possibly plus a constant; and other comparisons."""

    roots = ("Where",)

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        """What to replace."""
        condition, a, b = node.inputs
        comparison = graph.producer(condition, *_BELOW)
        if comparison is None or a is None or b is None:
            return None
        first, second = (_counted(v, graph) for v in comparison.inputs)
        if first is None or second is None or {first[0], second[0]} != {0, 1}:
            return None
        rank = graph.rank(node.outputs[0])
        if rank is None or rank < 2 or rank != graph.rank(condition):
            return Refusal("the matrix has other axes than the comparison", rank)
        if any(
            graph.static(v) not in ((), *((1,) * n for n in range(1, rank + 1))) for v in (a, b)
        ):
            return Refusal("the values are no single numbers", (graph.dims(a), graph.dims(b)))
        below, on, above = _BELOW[comparison.op_type]
        columns, rows = (first, second) if first[0] else (second, first)
        if not first[0]:  # the row is compared with the column
            below, above = above, below
        how: dict[str, Any] = {"rank": rank, "diagonal": rows[2] - columns[2]}
        values = [a if holds else b for holds in (below, on, above)]
        read = [rows[1], columns[1], *values]
        if not graph.runs("TriMatrix", read, domain=OWN_DOMAIN, **how):
            return Refusal("no kernel", a.dtype)

        def build(op: Any) -> ir.Value:
            result = op.call("TriMatrix", *read, domain=OWN_DOMAIN, **how)
            result.type = node.outputs[0].type
            return result

        return Match([node.outputs[0]], build)


def _is_number(value: ir.Value, rank: int, graph: GraphView) -> bool:
    dims = graph.static(value)
    return dims is not None and set(dims) <= {1} and len(dims) <= rank


def _counted(value: ir.Value | None, graph: GraphView) -> tuple[int, ir.Value, int] | None:
    """Whether a value counts columns (1) or rows (0), how many, and from which number."""
    number = 0
    axis: int | None = None
    for _ in range(_STEPS):
        node = graph.producer(value, "Add", "Unsqueeze", "Reshape", "Range")
        if node is None:
            return None
        if node.op_type == "Range":
            start, limit, step = node.inputs
            if limit is None or limit.dtype != ir.DataType.INT64:
                return None
            if graph.scalar(start) != 0 or graph.scalar(step) != 1:
                return None
            return 1 if axis is None else axis, limit, number
        if axis is None and (axis := _axis(value, graph)) is None:
            return None
        if node.op_type == "Add":
            a, b = node.inputs
            constant = graph.scalar(b)
            value, constant = (a, constant) if constant is not None else (b, graph.scalar(a))
            if constant is None or not float(constant).is_integer():
                return None
            number += int(constant)
        else:
            value = node.inputs[0]
    return None


def _axis(value: ir.Value | None, graph: GraphView) -> int | None:
    """1 for a tensor [..., 1, n], 0 for [..., n, 1], all other sizes being one."""
    dims = graph.dims(value)
    if not dims or any(d != 1 for d in dims[:-2]):
        return None
    if len(dims) == 1 or (dims[-2] == 1 and dims[-1] != 1):
        return 1
    return 0 if dims[-1] == 1 and dims[-2] != 1 else None
