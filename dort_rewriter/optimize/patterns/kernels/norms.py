"""The gradient of an RMS norm as autograd writes it."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import onnx_ir as ir

from dort_rewriter.graph.shapes import same
from dort_rewriter.kernels.operators import OWN_DOMAIN
from dort_rewriter.optimize.patterns.base import Match, Refusal, Rule
from dort_rewriter.optimize.patterns.recognize.arithmetic import factors
from dort_rewriter.optimize.view import GraphView

__all__ = ["RmsNormGrad"]


class RmsNormGrad(Rule):
    """``(a + h * r) + x * (sum(h * x) * (-1 / n) * r ** 3) -> a + RmsNormGrad(g, x, r, w)``
    with h = g * w, r one number for each row of n; a may be missing."""

    roots = ("ReduceSum",)

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        """What to replace."""
        found = list(factors(graph.producer(node.inputs[0], "Mul")))
        curve = _curve(node.outputs[0], graph)
        if not found or curve is None:
            return None
        scale, root, x, total = curve
        scaled = next((h for h, value in found if value is x), None)
        dims = graph.dims(x) or (None,)
        width, last_axis = dims[-1], [len(dims) - 1]
        if (
            scaled is None
            or not isinstance(width, int)
            or not graph.attribute(node, "keepdims", 1)
        ):
            return None
        if graph.axes(node, len(dims)) != last_axis:
            return Refusal("the sum is not along the last axis", graph.axes(node, len(dims)))
        if np.float32(scale) != np.float32(-1 / width):
            return Refusal("the factor is not minus one by the number of elements", scale)
        straight = [
            m
            for m in graph.consumers(scaled)
            if m.op_type == "Mul" and set(m.inputs) == {scaled, root} and not m.domain
        ]
        if len(straight) != 1 or not graph.used_once(straight[0].outputs[0]):
            return None
        ends = _ends(straight[0].outputs[0], total, graph)
        if ends is None:
            return Refusal("the two parts are not added", scaled.name)
        weights = [
            (g, w)
            for g, w in factors(graph.producer(scaled, "Mul"))
            if graph.static(w) == (width,)
        ]
        if not weights:
            return Refusal("there is no weight", scaled.name)
        g, w = weights[0]
        rows = graph.dims(root) or ()
        each = len(rows) == len(dims) and all(map(same, rows, (*dims[:-1], 1)))
        if not each or not graph.same_shape(g, x):
            return Refusal("there is not one root for each row", rows)
        if not graph.runs("RmsNormGrad", [g, x, root, w], outputs=[x], domain=OWN_DOMAIN):
            return Refusal("no kernel", x.dtype)
        last, kept = ends

        def build(op: Any) -> list[ir.Value]:
            result = op.call("RmsNormGrad", g, x, root, w, domain=OWN_DOMAIN)
            result.type, result.shape = x.type, x.shape
            return [result if kept is None else op.Add(kept, result)]

        return Match([last], build)


def _other(node: ir.Node, value: ir.Value) -> ir.Value | None:
    """What a product or a sum has beside a value."""
    rest = [v for v in node.inputs if v is not value]
    return rest[0] if len(rest) == 1 else None


def _only_reader(value: ir.Value, graph: GraphView, op_type: str) -> ir.Node | None:
    if not graph.used_once(value):
        return None
    (reader,) = graph.consumers(value)
    return reader if reader.op_type == op_type and not reader.domain else None


def _curve(total: ir.Value, graph: GraphView) -> tuple[float, ir.Value, ir.Value, ir.Value] | None:
    """The constant, r, x and the product of ``total * constant * r ** 3 * x``."""
    value, scale = total, None
    root: ir.Value | None = None
    while (product := _only_reader(value, graph, "Mul")) is not None:
        factor = _other(product, value)
        if factor is None:
            return None
        value = product.outputs[0]
        if (number := graph.scalar(factor)) is not None and scale is None:
            scale = float(number)
        elif (cubed := _root_of_cube(factor, graph)) is not None and root is None:
            root = cubed
        elif scale is not None and root is not None:
            return scale, root, factor, value
        else:
            return None
    return None


def _root_of_cube(value: ir.Value, graph: GraphView) -> ir.Value | None:
    for root, square in factors(graph.producer(value, "Mul")):
        if any(a is root and b is root for a, b in factors(graph.producer(square, "Mul"))):
            return root
    return None


def _ends(
    straight: ir.Value, curve: ir.Value, graph: GraphView
) -> tuple[ir.Value, ir.Value | None] | None:
    """The sum of the two parts, and what else is in it."""
    for first, second in permutations((straight, curve)):
        inner = _only_reader(first, graph, "Add")
        if inner is None:
            continue
        other = _other(inner, first)
        if other is second:
            return inner.outputs[0], None
        outer = _only_reader(second, graph, "Add")
        whole = outer is not None and _other(outer, second) is inner.outputs[0]
        if outer is not None and whole and other is not None:
            return (outer.outputs[0], other) if graph.used_once(inner.outputs[0]) else None
    return None
