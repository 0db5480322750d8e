"""Updates scattered into zeros: the gradient of an embedding or of an index."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from dort_rewriter.kernels.operators import OWN_DOMAIN, OWN_MOST_AXES
from dort_rewriter.optimize.patterns.base import Match, Refusal, Rule
from dort_rewriter.optimize.view import GraphView

__all__ = ["ConstantOfShapeScatterND", "MaskedShapeScatterND"]


class ConstantOfShapeScatterND(Rule):
    """``ScatterND(ConstantOfShape(shape), i, u) -> ScatterZeros(shape, i, u)``   of zeros, when
    updates are added or replace."""

    roots = ("ScatterND",)

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        """What to replace."""
        zeros, indices, updates = node.inputs
        constant = graph.producer(zeros, "ConstantOfShape")
        if constant is None or zeros is None or updates is None or not graph.used_once(zeros):
            return None
        shape = constant.inputs[0]
        value = graph.attribute(constant, "value")
        if value is not None and value.numpy().any():
            return Refusal("the constant is not zero", value.numpy().ravel()[0])
        reduction = graph.attribute(node, "reduction", "none")
        if reduction not in ("none", "add"):
            return Refusal("the updates are neither added nor written", reduction)
        if (graph.rank(node.outputs[0]) or 0) > OWN_MOST_AXES:
            return Refusal("the result has too many axes", graph.rank(node.outputs[0]))
        add = int(reduction == "add")
        if not graph.runs("ScatterZeros", [shape, indices, updates], domain=OWN_DOMAIN, add=add):
            return Refusal("no kernel", updates.dtype)

        def build(op: Any) -> ir.Value:
            result = op.call("ScatterZeros", shape, indices, updates, domain=OWN_DOMAIN, add=add)
            result.type = updates.type
            return result

        return Match([node.outputs[0]], build)


class MaskedShapeScatterND(Rule):
    """``ScatterZeros(shape, i, Where(Equal(i, c), 0, u)) -> ScatterZeros<skip=c>(shape, i, u)``
    of indices of one column, when updates are added."""

    roots = (f"{OWN_DOMAIN}::ScatterZeros",)

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        """What to replace."""
        shape, indices, masked = node.inputs
        where = graph.producer(masked, "Where")
        if where is None or masked is None or not graph.used_once(masked):
            return None
        condition, zero, updates = where.inputs
        skip = _compared(condition, indices, graph)
        if skip is None or graph.scalar(zero) != 0 or updates is None:
            return None
        if not graph.attribute(node, "add", 0) or graph.attribute(node, "masked", 0):
            return Refusal("the updates are not added, or masked already", node.name)
        dims = graph.dims(indices)
        if not dims or dims[-1] != 1 or len(dims) != graph.rank(masked):
            return Refusal("the indices are not one column beside the updates", dims)
        if not graph.same_shape(updates, masked):
            return Refusal("the updates are repeated", graph.dims(updates))
        how: dict[str, Any] = {"add": 1, "masked": 1, "skip": skip}
        if not graph.runs("ScatterZeros", [shape, indices, updates], domain=OWN_DOMAIN, **how):
            return Refusal("no kernel", updates.dtype)

        def build(op: Any) -> ir.Value:
            read = shape, indices, updates
            result = op.call("ScatterZeros", *read, domain=OWN_DOMAIN, **how)
            result.type = updates.type
            return result

        return Match([node.outputs[0]], build)


def _compared(
    condition: ir.Value | None, indices: ir.Value | None, graph: GraphView
) -> int | None:
    """The constant to which a condition compares these indices."""
    equal = graph.producer(condition, "Equal")
    if equal is None or indices is None:
        return None
    a, b = equal.inputs
    constant = b if a is indices else a if b is indices else None
    number = graph.scalar(constant)
    return None if number is None else int(number)
