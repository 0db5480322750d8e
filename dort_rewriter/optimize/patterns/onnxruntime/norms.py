"""Normalizations that onnxruntime has as one kernel."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from dort_rewriter.graph.shapes import same
from dort_rewriter.graph.writer import Writer
from dort_rewriter.optimize.patterns.base import Match, Refusal, Rule
from dort_rewriter.optimize.patterns.recognized.norms import (
    RootMeanSquare,
    factors,
    find_root_mean_square,
)
from dort_rewriter.optimize.view import GraphView

__all__ = ["SimplifiedLayerNormalization"]


class SimplifiedLayerNormalization(Rule):
    """``Mul(weight, x * rstd) -> SimplifiedLayerNormalization(x, weight)``.

    ``rstd = 1 / sqrt(mean(x * x) + epsilon)`` over the last axis; it is the second result where a
    training graph saves it. NOTE: the operator is onnxruntime's, in the domain of ONNX.
    """

    roots = ("Mul",)

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        """Return what to replace."""
        for weight, standard in factors(node):
            narrowed = graph.producer(standard, "Cast")
            value = standard if narrowed is None else narrowed.inputs[0]
            found = find_root_mean_square(value, graph)
            if isinstance(found, RootMeanSquare):
                return _fuse(node, weight, standard, found, graph)
            if found is not None:
                return found
        return None


def _fuse(
    node: ir.Node, weight: ir.Value, standard: ir.Value, norm: RootMeanSquare, graph: GraphView
) -> Match | Refusal:
    x = norm.x
    if x.dtype != standard.dtype:  # half computed in float, as the kernel does by itself
        widened = graph.producer(x, "Cast")
        x = x if widened is None or widened.inputs[0] is None else widened.inputs[0]
    if not x.dtype == weight.dtype == node.outputs[0].dtype:
        return Refusal("the weight has another type", f"{x.dtype}, {weight.dtype}")
    width, size = graph.dims(x), graph.dims(weight)
    if width is None or size is None or len(size) != 1 or not same(width[-1], size[0]):
        return Refusal("the weight is no vector over the last axis", size)
    replaces = [node.outputs[0]]
    if norm.rstd is not None and norm.needs_rstd(standard, graph):
        replaces.append(norm.rstd)
    if not graph.runs(
        "SimplifiedLayerNormalization", [x, weight], domain="", outputs=len(replaces)
    ):
        return Refusal("no kernel for the type", x.dtype)

    def build(op: Writer) -> Sequence[ir.Value]:
        results = op.call(
            "SimplifiedLayerNormalization",
            x,
            weight,
            axis=-1,
            epsilon=norm.epsilon,
            outputs=len(replaces),
        )
        return results if isinstance(results, tuple) else [results]

    return Match(replaces, build)
