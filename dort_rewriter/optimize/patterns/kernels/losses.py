"""The gradient of a cross entropy: one number of each row was chosen."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from dort_rewriter.graph.shapes import same
from dort_rewriter.kernels.operators import OWN_DOMAIN
from dort_rewriter.optimize.patterns.base import Match, Refusal, Rule
from dort_rewriter.optimize.patterns.recognize.fillings import filling
from dort_rewriter.optimize.view import GraphView

__all__ = ["CrossEntropyGrad"]


class CrossEntropyGrad(Rule):
    """``SoftmaxGrad<log>(ScatterElements(0, i, g), y) -> CrossEntropyGrad(y, i, -g)``   along the
    last axis, g one number for each row."""

    roots = (f"{OWN_DOMAIN}::SoftmaxGrad",)

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        """What to replace."""
        gradient, y = node.inputs
        scatter = graph.producer(gradient, "ScatterElements")
        if scatter is None or not graph.attribute(node, "log", 0):
            return None
        chosen = scatter.outputs[0]
        zeros, indices, updates = scatter.inputs
        if filling(zeros, graph) != 0:
            return None
        if not graph.used_once(chosen) or not _is_last(scatter, graph):
            return Refusal("the chosen places are of another axis, or read elsewhere", chosen.name)
        dims, rows = graph.dims(y), graph.dims(indices)
        if not graph.same_shape(chosen, y) or dims is None or rows is None or rows[-1:] != (1,):
            return Refusal("more than one place is chosen in a row", rows)
        if not graph.same_shape(updates, indices):
            return Refusal("the gradient is not one for each row", graph.dims(updates))
        if not _has_rows(rows, dims):
            return Refusal("places are chosen in some rows only", rows)
        read = (y, indices, updates)
        if not graph.runs("CrossEntropyGrad", read, outputs=node.outputs, domain=OWN_DOMAIN):
            return Refusal("no kernel", None if indices is None else indices.dtype)

        def build(op: Any) -> ir.Value:
            result = op.call("CrossEntropyGrad", y, indices, op.Neg(updates), domain=OWN_DOMAIN)
            result.type = node.outputs[0].type
            return result

        return Match([node.outputs[0]], build)


def _is_last(scatter: ir.Node, graph: GraphView) -> bool:
    rank = graph.rank(scatter.inputs[0]) or 0
    last = graph.attribute(scatter, "axis", 0) in (-1, rank - 1)
    return last and graph.attribute(scatter, "reduction", "none") == "none"


def _has_rows(rows: tuple[Any, ...], dims: tuple[Any, ...]) -> bool:
    """Whether indices have the sizes of a tensor, but for the last."""
    return len(rows) == len(dims) and all(map(same, rows[:-1], dims[:-1]))
