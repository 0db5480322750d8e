"""Normalizations that onnxruntime has as one kernel."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from dort_rewriter.graph.writer import Writer
from dort_rewriter.optimize.patterns.base import Match, Refusal, Rule
from dort_rewriter.optimize.patterns.recognized.norms import RmsNorm, find_rms_norm
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
        norm = find_rms_norm(node, graph)
        if not isinstance(norm, RmsNorm):
            return norm
        outputs = len(norm.replaces)
        if not graph.runs(
            "SimplifiedLayerNormalization", [norm.x, norm.weight], domain="", outputs=outputs
        ):
            return Refusal("no kernel for the type", norm.x.dtype)

        def build(op: Writer) -> Sequence[ir.Value]:
            results = op.call(
                "SimplifiedLayerNormalization",
                norm.x,
                norm.weight,
                axis=-1,
                epsilon=norm.epsilon,
                outputs=outputs,
            )
            return results if isinstance(results, tuple) else [results]

        return Match(norm.replaces, build)
