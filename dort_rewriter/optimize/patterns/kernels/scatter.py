"""Updates scattered into zeros: the gradient of an embedding or of an index."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from dort_rewriter.kernels.operators import OWN_DOMAIN, OWN_MOST_AXES
from dort_rewriter.optimize.patterns.base import Match, Refusal, Rule
from dort_rewriter.optimize.view import GraphView


class ConstantOfShapeScatterND(Rule):
    """``ScatterND(ConstantOfShape(shape), i, u) -> ScatterZeros(shape, i, u)``   of zeros, when
    updates are added or replace."""

    roots = ("ScatterND",)

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
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
        read = (shape, indices, updates)
        how: dict[str, Any] = {"domain": OWN_DOMAIN, "add": int(reduction == "add")}
        if not graph.runs("ScatterZeros", read, **how):
            return Refusal("no kernel", updates.dtype)
        return Match([node.outputs[0]], lambda op: op.call("ScatterZeros", *read, **how))
