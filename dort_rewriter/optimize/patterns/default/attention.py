"""Attention as the one operator that newer opsets have."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from dort_rewriter.graph.shapes import same
from dort_rewriter.graph.writer import Writer
from dort_rewriter.optimize.patterns.base import Match, Refusal, Rule
from dort_rewriter.optimize.patterns.recognized.attention import Attention as Found
from dort_rewriter.optimize.patterns.recognized.attention import (
    find_attention,
    mask_of,
    masked_scores,
)
from dort_rewriter.optimize.view import Dim, GraphView

__all__ = ["Attention"]


class Attention(Rule):
    """``softmax(q @ k.T * scale + bias) @ v -> Attention(q, k, v, bias)``   when the opset has it.

    That is 23 or more. A ``Where`` that gives zero where the bias masks all keys is applied to the
    result. Heads of keys and values that are repeated for groups of queries are read
    as they are.
    """

    roots = ("MatMul", "Where")
    lowers = "Softmax nodes"

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        """Return what to replace."""
        if graph.opset < 23:
            return None
        if node.op_type == "Where":
            return _match_masked(node, graph)
        found = find_attention(node, graph)
        if not isinstance(found, Found):
            return found
        if mask_of(graph.consumers(found.result), graph) is not None:
            return None  # left to its Where
        if not graph.used_once(found.scores):
            return Refusal("others read the scores", found.scores.name)
        return _fuse(found, found.result, graph, is_masked=False)


def _match_masked(node: ir.Node, graph: GraphView) -> Match | Refusal | None:
    scores = masked_scores(node, graph)
    product = graph.producer(node.inputs[2], "MatMul")
    if scores is None or product is None:
        return None
    found = find_attention(product, graph)
    if not isinstance(found, Found) or found.scores is not scores or found.bias is None:
        return found if isinstance(found, Refusal) else None
    if len(graph.consumers(scores)) > 2 or not graph.used_once(found.result):
        return Refusal("others read the scores", scores.name)
    return _fuse(found, node.outputs[0], graph, is_masked=True)


def _fuse(found: Found, result: ir.Value, graph: GraphView, *, is_masked: bool) -> Match | Refusal:
    q, k, v, bias, scale = found.q, found.k, found.v, found.bias, found.scale
    if q.dtype == ir.DataType.DOUBLE:
        return Refusal("it would be computed in float32", q.dtype)
    if (misfit := _misfit([graph.dims(x) for x in (q, k, v)])) is not None:
        return misfit
    if bias is not None and not _covers(graph.dims(bias), graph.dims(q), graph.dims(k)):
        return Refusal("the bias has not all queries and keys", str(graph.dims(bias)))
    sources = _ungrouped(k, graph), _ungrouped(v, graph)
    if None not in sources and _same_heads(sources, graph):
        k, v = (s for s in sources if s is not None)
    inputs = [q, k, v] if bias is None else [q, k, v, bias]
    if not graph.runs("Attention", inputs, domain=""):
        return Refusal("no kernel for the type", q.dtype)

    def build(op: Writer) -> ir.Value:
        y: ir.Value = op.Attention(*inputs, scale=scale, outputs=1)
        if is_masked:  # softmax of a row without any key is NaN
            rows = op.ReduceMax(bias, [-1], keepdims=1)
            y = op.Where(op.Equal(rows, -float("inf")), 0.0, y)
        return y

    return Match([result], build)


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
    """Tell whether a bias has all queries and keys, and no more batches or heads."""
    if bias is None or q is None or k is None or not 2 <= len(bias) <= 4:
        return False
    whole = (*(1,) * (4 - len(bias)), *bias)
    return (
        same(whole[2], q[2])
        and same(whole[3], k[2])
        and (whole[0] == 1 or same(whole[0], q[0]))
        and whole[1] in (1, q[1])
    )


def _ungrouped(value: ir.Value, graph: GraphView) -> ir.Value | None:
    """Return the heads that a value repeats, ``Reshape(Expand(Unsqueeze(x, 2)))``, if it does."""
    merge = graph.producer(value, "Reshape")
    expand = None if merge is None else graph.producer(merge.inputs[0], "Expand")
    split = None if expand is None else graph.producer(expand.inputs[0], "Unsqueeze", "Reshape")
    source = None if split is None else split.inputs[0]
    if expand is None or split is None or source is None:
        return None
    x, single, many, whole = (
        graph.dims(v) for v in (source, split.outputs[0], expand.outputs[0], value)
    )
    if x is None or single is None or many is None or whole is None:
        return None
    if (len(x), len(single), len(many), len(whole)) != (4, 5, 5, 4):
        return None
    heads, groups, all_heads = x[1], many[2], whole[1]
    if not (isinstance(heads, int) and isinstance(groups, int) and isinstance(all_heads, int)):
        return None
    expected = (*x[:2], 1, *x[2:]), (*x[:2], groups, *x[2:]), (x[0], heads * groups, *x[2:])
    fits = all(
        all(map(same, wanted, dims))
        for wanted, dims in zip(expected, (single, many, whole), strict=True)
    )
    return source if fits else None


def _same_heads(values: Sequence[ir.Value | None], graph: GraphView) -> bool:
    k, v = (graph.dims(value) for value in values)
    return k is not None and v is not None and k[1] == v[1]
