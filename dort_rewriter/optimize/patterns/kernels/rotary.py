"""Rotary embeddings as models write them, and as autograd differentiates that."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import onnx_ir as ir

from dort_rewriter.graph.schemas import OWN_DOMAIN
from dort_rewriter.optimize.patterns.base import Match, Refusal, Rule
from dort_rewriter.optimize.view import GraphView

__all__ = ["Rotary"]


class Rotary(Rule):
    """``x * cos + Concat(-x[h:], x[:h]) * sin -> Rotary(x, cos, sin)``   h half the last size;
    ``x * cos + Concat(u[h:], -u[:h]) -> Rotary<gradient=1>(x, cos, sin)``   with u = x * sin."""

    roots = ("Add",)

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        """What to replace."""
        found = _match_forward(node, graph) or _match_gradient(node, graph)
        if found is None:
            return None
        x, cos, sin, gradient = found
        if not graph.same_shape(x, node.outputs[0]):
            return Refusal("the result has another shape than x", graph.dims(x))
        sizes = [(graph.dims(v) or (None,))[-1] for v in (x, cos, sin)]
        if not isinstance(sizes[0], int) or set(sizes) != {sizes[0]}:
            return Refusal("cos and sin have another last size than x", sizes)
        if not graph.runs("Rotary", [x, cos, sin], domain=OWN_DOMAIN, gradient=gradient):
            return Refusal("no kernel", x.dtype)

        def build(op: Any) -> ir.Value:
            return op.call("Rotary", x, cos, sin, domain=OWN_DOMAIN, gradient=gradient)

        return Match([node.outputs[0]], build)


Found = tuple[ir.Value, ir.Value, ir.Value, int]


def _match_forward(node: ir.Node, graph: GraphView) -> Found | None:
    for straight, turned in permutations(node.inputs):
        for rotated, sin in _factors(turned, graph):
            halves = _halves(rotated, graph)
            if halves is None or halves[0] is not True:
                continue
            for x, cos in _factors(straight, graph):
                if x is halves[1]:
                    return x, cos, sin, 0
    return None


def _match_gradient(node: ir.Node, graph: GraphView) -> Found | None:
    for straight, rotated in permutations(node.inputs):
        halves = _halves(rotated, graph)
        if halves is None or halves[0] is not False:
            continue
        for x, sin in _factors(halves[1], graph, uses=2):
            for again, cos in _factors(straight, graph):
                if again is x:
                    return x, cos, sin, 1
    return None


def _factors(
    value: ir.Value | None, graph: GraphView, uses: int = 1
) -> list[tuple[ir.Value, ir.Value]]:
    """The factors of a product in both orders, if it is one nobody else reads."""
    product = graph.producer(value, "Mul")
    if product is None or value is None or value.is_graph_output() or len(value.uses()) > uses:
        return []
    a, b = product.inputs
    return [] if a is None or b is None else [(a, b), (b, a)]


def _halves(value: ir.Value | None, graph: GraphView) -> tuple[bool, ir.Value] | None:
    """The source of ``Concat(-x[h:], x[:h])`` after True, of ``(x[h:], -x[:h])`` after
    False."""
    concat = graph.producer(value, "Concat")
    if value is None or concat is None or len(concat.inputs) != 2 or not graph.used_once(value):
        return None
    if graph.attribute(concat, "axis") not in (-1, (graph.rank(value) or 0) - 1):
        return None
    first, second = concat.inputs
    negative = graph.producer(first, "Neg")
    other = graph.producer(second, "Neg")
    if (negative is None) == (other is None):
        return None
    upper = _half(negative.inputs[0] if negative else first, graph)
    lower = _half(other.inputs[0] if other else second, graph)
    if upper is None or lower is None or upper[0] is not lower[0]:
        return None
    return (negative is not None, upper[0]) if (upper[1], lower[1]) == (1, 0) else None


def _half(value: ir.Value | None, graph: GraphView) -> tuple[ir.Value, int] | None:
    """What a value is half of, along the last axis, and which of the two."""
    part = graph.producer(value, "Slice", "Split")
    if part is None or value is None or (x := part.inputs[0]) is None:
        return None
    dims = graph.dims(x)
    if not dims or not isinstance(size := dims[-1], int) or size % 2:
        return None
    last = len(dims) - 1
    if part.op_type == "Split":
        axis = graph.attribute(part, "axis", 0) % len(dims)
        halves = axis == last and (graph.dims(value) or (None,))[-1] == size // 2
        return (x, value.index() or 0) if halves and len(part.outputs) == 2 else None
    parameters = [graph.integers(v) for v in part.inputs[1:]]
    if any(p is None or len(p) != 1 for p in parameters):
        return None
    starts, ends, *rest = [p[0] for p in parameters if p is not None]
    axis = rest[0] % len(dims) if rest else 0
    if axis != last or rest[1:] not in ([], [1]):
        return None
    begin = starts if starts >= 0 else starts + size
    end = min(ends if ends >= 0 else ends + size, size)
    return (x, int(begin > 0)) if (begin, end) in ((0, size // 2), (size // 2, size)) else None
