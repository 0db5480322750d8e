"""Transposes that undo or follow each other."""

from __future__ import annotations

import onnx_ir as ir

from dort_rewriter.optimize.patterns.base import Match, Rule
from dort_rewriter.optimize.view import GraphView

__all__ = ["TransposeTranspose"]


class TransposeTranspose(Rule):
    """``Transpose(Transpose(x, p), q) -> Transpose(x, p[q])``   or ``x`` when that is in order.

    NOTE: an identity Transpose must not stay: onnxruntime 1.19 computes it wrongly before a
    MatMul and an Add.
    """

    roots = ("Transpose",)

    def match(self, node: ir.Node, graph: GraphView) -> Match | None:
        """Return what to replace."""
        first = graph.producer(node.inputs[0], "Transpose")
        perm = _permutation(node, graph)
        x = node.inputs[0]
        if first is not None:
            inner = _permutation(first, graph)
            perm = None if perm is None or inner is None else [inner[i] for i in perm]
            x = first.inputs[0]
        if perm is None or x is None or (first is None and perm != sorted(perm)):
            return None
        if perm == sorted(perm):
            return Match([node.outputs[0]], lambda op: x)
        return Match([node.outputs[0]], lambda op: op.Transpose(x, perm=perm))


def _permutation(node: ir.Node, graph: GraphView) -> list[int] | None:
    perm = graph.attribute(node, "perm")
    if perm is not None:
        return list(perm)
    rank = graph.rank(node.inputs[0])
    return None if rank is None else list(range(rank))[::-1]
