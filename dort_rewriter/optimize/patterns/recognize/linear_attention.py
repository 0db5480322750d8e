"""A step of linear attention: a state that decays, takes a key and a value, and is asked.

Models spell each token so, since no operator of ATen computes the recurrence: for the token of a
decoder the step is all of it, exactly.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from dort_rewriter.optimize.patterns.recognize.operands import factors
from dort_rewriter.optimize.view import GraphView, same_sizes


@dataclass(frozen=True)
class LinearStep:
    """``S = exp(decay) * past + key (x) update``, ``result = query . S``, by batch and head.

    ``update`` is the value, or ``beta * (value - key . (exp(decay) * past))``.
    """

    query: ir.Value
    key: ir.Value
    value: ir.Value
    past: ir.Value
    decay: ir.Value | None
    beta: ir.Value | None
    state: ir.Value
    result: ir.Value
    sizes: tuple[int, int, int]
    """Heads, and the sizes of a key and of a value."""
    decay_rank: int

    @property
    def rule(self) -> str:
        """What ONNX calls it."""
        if self.beta is None:
            return "linear" if self.decay is None else "gated"
        return "delta" if self.decay is None else "gated_delta"


def find_linear_step(node: ir.Node, graph: GraphView) -> LinearStep | None:
    """Whether a ReduceSum asks a state that a step has made."""
    for state, query in _asked(node, graph):
        total = graph.producer(state, "Add")
        for decayed, update in factors(total):
            for key, change in _outer(update, graph):
                found = _step(node.outputs[0], query, state, decayed, key, change, graph)
                if found is not None:
                    return found
    return None


def _step(
    result: ir.Value,
    query: ir.Value,
    state: ir.Value,
    decayed: ir.Value,
    key: ir.Value,
    change: ir.Value,
    graph: GraphView,
) -> LinearStep | None:
    past, decay = _decay(decayed, graph)
    value, beta = _delta(change, decayed, key, graph) or (change, None)
    shape = graph.dims(state)
    if shape is None or not graph.same_shape(past, state) or len(shape) != 4:
        return None
    heads, wide, deep = shape[1:]
    if not (isinstance(heads, int) and isinstance(wide, int) and isinstance(deep, int)):
        return None
    for given, size in ((query, wide), (key, wide), (value, deep)):
        dims = graph.dims(given)
        if dims is None or [*dims[1:]] != [heads, size] or not same_sizes(dims[:1], shape[:1]):
            return None
    measures, rank = (heads, wide, deep), graph.rank(decay) or 0
    return LinearStep(query, key, value, past, decay, beta, state, result, measures, rank)


def _asked(node: ir.Node | None, graph: GraphView) -> Iterator[tuple[ir.Value, ir.Value]]:
    """Yield a matrix and the vector whose product with it a ReduceSum is."""
    if node is None or graph.axes(node, 4) != [2] or graph.attribute(node, "keepdims", 1):
        return
    for matrix, column in factors(graph.producer(node.inputs[0], "Mul")):
        if (vector := _widened(column, [3], graph)) is not None:
            yield matrix, vector


def _outer(value: ir.Value, graph: GraphView) -> Iterator[tuple[ir.Value, ir.Value]]:
    """Yield the vectors whose outer product a value is."""
    for column, row in factors(graph.producer(value, "Mul")):
        a, b = _widened(column, [3], graph), _widened(row, [2], graph)
        if a is not None and b is not None:
            yield a, b


def _decay(value: ir.Value, graph: GraphView) -> tuple[ir.Value, ir.Value | None]:
    """The state that a value is with what it was multiplied by, as a logarithm."""
    for past, gate in factors(graph.producer(value, "Mul")):
        for axes in ([2, 3], [3]):  # a number for a head, or for each entry of a key
            exponential = graph.producer(_widened(gate, axes, graph), "Exp")
            if exponential is not None and exponential.inputs[0] is not None:
                return past, exponential.inputs[0]
    return value, None


def _delta(
    change: ir.Value, decayed: ir.Value, key: ir.Value, graph: GraphView
) -> tuple[ir.Value, ir.Value] | None:
    """The value and the rate of ``beta * (value - key . state)``."""
    for difference, rate in factors(graph.producer(change, "Mul")):
        beta = _widened(rate, [2], graph)
        node = graph.producer(difference, "Sub")
        if beta is None or node is None or node.inputs[0] is None:
            continue
        known = _asked(graph.producer(node.inputs[1], "ReduceSum"), graph)
        if any(matrix is decayed and vector is key for matrix, vector in known):
            return node.inputs[0], beta
    return None


def _widened(value: ir.Value | None, axes: list[int], graph: GraphView) -> ir.Value | None:
    """What a value is with axes of size one added."""
    node, rank = graph.producer(value, "Unsqueeze"), graph.rank(value)
    if node is None or rank is None or graph.axes(node, rank) != axes:
        return None
    return node.inputs[0]
