"""Heads of keys and values that serve several queries, in attention that is written out."""

from __future__ import annotations

import onnx_ir as ir

from dort_rewriter.graph.writer import Writer
from dort_rewriter.optimize.patterns.base import Match, Refusal, Rule
from dort_rewriter.optimize.patterns.recognize.attention import Located, locate_attention
from dort_rewriter.optimize.patterns.recognize.heads import (
    is_for_all_heads,
    shared_heads,
    without_repeats,
)
from dort_rewriter.optimize.view import GraphView

__all__ = ["SharedHeads"]


class SharedHeads(Rule):
    """``softmax(q @ repeated(k).T * scale + bias) @ repeated(v)`` of one query for each head: the
    queries of a group are rows over one head, and keys and values are read where they are.

    A step of a decoder copied its whole cache for each group.
    """

    roots = ("MatMul", "Where")
    reads = ("Softmax", "Equal")
    lowers = "bytes of keys and values"

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        """What to replace."""
        located = locate_attention(node, graph)
        return _fold(located, graph) if isinstance(located, Located) else located


def _fold(located: Located, graph: GraphView) -> Match | Refusal | None:
    found = located.attention
    sources = shared_heads([found.k, found.v], graph)
    if sources is None:
        return None
    dims, whole, (key, value) = graph.dims(found.q), graph.dims(found.k), map(graph.dims, sources)
    if dims is None or whole is None or key is None or value is None or len(dims) != 4:
        return Refusal("an unknown rank", dims)
    if dims[2] != 1 or dims[1] != whole[1]:
        return Refusal("there is not one query for each head", dims)
    if found.bias is not None and not is_for_all_heads(found.bias, graph):
        return Refusal("the bias is not the same for all heads", graph.dims(found.bias))
    heads, groups, *sizes = dims[1], key[1], dims[3], value[4]
    if not (isinstance(heads, int) and isinstance(groups, int)) or not all(
        isinstance(size, int) for size in sizes
    ):
        return Refusal("the heads have no known size", dims)

    def build(op: Writer) -> ir.Value:
        rows = op.Reshape(found.q, [0, groups, heads // groups, sizes[0]])
        k, v = (without_repeats(op, source, graph) for source in sources)
        scores = op.MatMul(rows, op.Transpose(k, perm=[0, 1, 3, 2]))
        if found.scale != 1:
            scores = op.Mul(scores, found.scale)
        if found.bias is not None:
            scores = op.Add(scores, found.bias)
        y = op.MatMul(op.Softmax(scores, axis=-1), v)
        if located.is_masked:  # softmax of a row without any key is NaN
            highest = op.ReduceMax(scores, [-1], keepdims=1)
            y = op.Where(op.Equal(highest, -float("inf")), 0.0, y)
        result: ir.Value = op.Reshape(y, [0, heads, 1, sizes[1]])
        return result

    return Match([located.result], build)
