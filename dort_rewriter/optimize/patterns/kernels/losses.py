"""The gradient of a cross entropy: one number of each row was chosen."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from dort_rewriter.graph.shapes import same
from dort_rewriter.kernels.operators import OWN_DOMAIN
from dort_rewriter.optimize.patterns.base import Match, Refusal, Rule
from dort_rewriter.optimize.patterns.recognize.arithmetic import factors
from dort_rewriter.optimize.patterns.recognize.fillings import filling
from dort_rewriter.optimize.view import GraphView

__all__ = ["CrossEntropyGrad"]


class CrossEntropyGrad(Rule):
    """``SoftmaxGrad<log>(ScatterElements(0, i, -1) * g, y) -> CrossEntropyGrad(y, i, g)``   along
    the last axis, g one number for each row or for all."""

    roots = (f"{OWN_DOMAIN}::SoftmaxGrad",)

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        """What to replace."""
        gradient, y = node.inputs
        found = _scattered(graph.producer(gradient, "Mul"), graph)
        if found is None or not graph.attribute(node, "log", 0):
            return None
        scatter, factor = found
        chosen = scatter.outputs[0]
        zeros, indices, updates = scatter.inputs
        if (filling(zeros, graph), filling(updates, graph)) != (0, -1):
            return None
        if not graph.used_once(chosen) or not _is_last(scatter, graph):
            return Refusal("the chosen places are of another axis, or read elsewhere", chosen.name)
        dims, rows = graph.dims(y), graph.dims(indices)
        if not graph.same_shape(chosen, y) or dims is None or rows is None or rows[-1:] != (1,):
            return Refusal("more than one place is chosen in a row", rows)
        alone = graph.static(factor)
        if not graph.same_shape(factor, indices) and not (alone is not None and set(alone) <= {1}):
            return Refusal("the factor is not one for each row", graph.dims(factor))
        if not _has_rows(rows, dims) or not graph.same_shape(gradient, y):
            return Refusal("places are chosen in some rows only", rows)
        read = (y, indices, factor)
        if not graph.runs("CrossEntropyGrad", read, outputs=node.outputs, domain=OWN_DOMAIN):
            return Refusal("no kernel", None if indices is None else indices.dtype)

        def build(op: Any) -> ir.Value:
            result = op.call("CrossEntropyGrad", *read, domain=OWN_DOMAIN)
            result.type = node.outputs[0].type
            return result

        return Match([node.outputs[0]], build)


def _scattered(product: ir.Node | None, graph: GraphView) -> tuple[ir.Node, ir.Value] | None:
    """The ScatterElements that a product reads, and its other factor."""
    if product is None:
        return None
    for value, factor in factors(product):
        if (scatter := graph.producer(value, "ScatterElements")) is not None:
            return scatter, factor
    return None


def _is_last(scatter: ir.Node, graph: GraphView) -> bool:
    rank = graph.rank(scatter.inputs[0]) or 0
    last = graph.attribute(scatter, "axis", 0) in (-1, rank - 1)
    return last and graph.attribute(scatter, "reduction", "none") == "none"


def _has_rows(rows: tuple[Any, ...], dims: tuple[Any, ...]) -> bool:
    """Whether indices have the sizes of a tensor, but for the last."""
    return len(rows) == len(dims) and all(map(same, rows[:-1], dims[:-1]))
