"""Attention as the one operator that newer opsets have."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from dort_rewriter.graph.shapes import same
from dort_rewriter.graph.writer import Writer
from dort_rewriter.optimize.patterns.base import Match, Refusal, Rule
from dort_rewriter.optimize.patterns.recognize.attention import Located, locate_attention
from dort_rewriter.optimize.patterns.recognize.heads import shared_heads
from dort_rewriter.optimize.view import Dim, GraphView

__all__ = ["Attention"]


class Attention(Rule):
    """``softmax(q @ k.T * scale + bias) @ v -> Attention(q, k, v, bias)``   when the opset has it.

    That is 23 or more. A ``Where`` that gives zero where the bias masks all keys is applied to the
    result. Heads of keys and values that are repeated for groups of queries are read
    as they are.
    """

    roots = ("MatMul", "Where")
    reads = ("Softmax", "Equal")
    lowers = "Softmax nodes"

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        """What to replace."""
        if graph.opset < 23:
            return None
        located = locate_attention(node, graph)
        return _fuse(located, graph) if isinstance(located, Located) else located


def _fuse(located: Located, graph: GraphView) -> Match | Refusal:
    found = located.attention
    q, k, v, bias, scale = found.q, found.k, found.v, found.bias, found.scale
    if q.dtype == ir.DataType.DOUBLE:
        return Refusal("it would be computed in float32", q.dtype)
    if (misfit := _misfit([graph.dims(x) for x in (q, k, v)])) is not None:
        return misfit
    if bias is not None and not _covers(graph.dims(bias), graph.dims(q), graph.dims(k)):
        return Refusal("the bias has not all queries and keys", str(graph.dims(bias)))
    if (sources := _shared(k, v, graph)) is not None:
        k, v = sources
    inputs = [q, k, v] if bias is None else [q, k, v, bias]
    if not graph.runs("Attention", inputs, domain=""):
        return Refusal("no kernel for the type", q.dtype)

    def build(op: Writer) -> ir.Value:
        y: ir.Value = op.Attention(*inputs, scale=scale, outputs=1)
        if located.is_masked:  # softmax of a row without any key is NaN
            rows = op.ReduceMax(bias, [-1], keepdims=1)
            y = op.Where(op.Equal(rows, -float("inf")), 0.0, y)
        return y

    return Match([located.result], build)


def _misfit(shapes: Sequence[tuple[Dim, ...] | None]) -> Refusal | None:
    """Refuse what is no attention over four known axes."""
    q, k, v = shapes
    if q is None or k is None or v is None or not len(q) == len(k) == len(v) == 4:
        return Refusal("an unknown rank", str(shapes))
    if not all(isinstance(n, int) for n in (q[1], q[3], k[1], k[3], v[1], v[3])):
        return Refusal("heads of unknown number or size", str(shapes))
    if not (q[1] == k[1] and all(map(same, k[:3], v[:3])) and same(q[0], k[0]) and q[3] == k[3]):
        return Refusal("queries, keys and values do not fit", str(shapes))
    return None


def _covers(
    bias: tuple[Dim, ...] | None, q: tuple[Dim, ...] | None, k: tuple[Dim, ...] | None
) -> bool:
    """Whether a bias has all queries and keys, and no more batches or heads."""
    if bias is None or q is None or k is None or not 2 <= len(bias) <= 4:
        return False
    whole = (*(1,) * (4 - len(bias)), *bias)
    return (
        same(whole[2], q[2])
        and same(whole[3], k[2])
        and (whole[0] == 1 or same(whole[0], q[0]))
        and whole[1] in (1, q[1])
    )


def _shared(k: ir.Value, v: ir.Value, graph: GraphView) -> tuple[ir.Value, ir.Value] | None:
    """Keys and values, four axes, the heads of which groups of queries share."""
    found = []
    for single in shared_heads([k, v], graph) or ():
        split = graph.producer(single, "Unsqueeze", "Reshape")
        source = None if split is None else split.inputs[0]
        dims, wanted = graph.dims(source), graph.dims(single)
        if source is None or dims is None or wanted is None or len(dims) != 4:
            return None
        if not all(map(same, dims, (*wanted[:2], *wanted[3:]))):
            return None
        found.append(source)
    return (found[0], found[1]) if found else None
