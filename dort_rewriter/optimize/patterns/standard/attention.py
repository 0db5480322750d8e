"""Attention as the operators that newer opsets have: rotary embedding, attention, shared heads."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from dort_rewriter.graph.shapes import Dim, same
from dort_rewriter.graph.writer import Writer, hides_all
from dort_rewriter.optimize.patterns.base import Match, Refusal, Rule
from dort_rewriter.optimize.patterns.recognize.attention import (
    Located,
    hide,
    is_for_all_heads,
    locate_attention,
    shared_heads,
    without_hidden_rows,
    without_repeats,
)
from dort_rewriter.optimize.patterns.recognize.rotary import Rotary, find_rotary
from dort_rewriter.optimize.view import GraphView


class RotaryEmbedding(Rule):
    """``x * cos + concat(-x[half:], x[:half]) * sin -> RotaryEmbedding(x, cos, sin)``   from
    opset 23.

    The tables hold both halves alike, ``concat(f, f)``; the operator wants them for each batch.
    """

    roots = ("Add",)
    reads = ("Mul", "Cast", "Concat")
    lowers = "elements of tables and of their products"

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        if graph.opset < 23:
            return None
        found = find_rotary(node, graph)
        if not isinstance(found, Rotary):
            return found
        x = found.x
        if not graph.runs("RotaryEmbedding", [x, x, x], domain=""):
            return Refusal("no kernel for the type", x.dtype)
        batch = (graph.dims(x) or (None,))[0]

        def build(op: Writer) -> ir.Value:
            tables = [
                op.Reshape(half(op), [1, -1, found.size // 2]) for half in (found.cos, found.sin)
            ]
            if isinstance(batch, int):
                shape = op.constant([batch, 1, 1])
            else:
                shape = op.Concat(op.Shape(x, start=0, end=1), op.constant([1, 1]), axis=0)
            if batch != 1:
                tables = [op.Expand(table, shape) for table in tables]
            return op.RotaryEmbedding(x, *tables)

        return Match([node.outputs[0]], build)


class Attention(Rule):
    """``softmax(q @ k.T * scale + bias) @ v -> Attention(q, k, v, bias)``   when the opset has it.

    That is 23 or more. A ``Where`` that gives zero where the bias masks all keys is applied to the
    result. Heads of keys and values that are repeated for groups of queries are read
    as they are.
    """

    roots = ("MatMul",)
    reads = ("Softmax", "Where")
    lowers = "Softmax nodes"

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        if graph.opset < 23:
            return None
        found = locate_attention(node, graph)
        return _fuse(found, graph) if isinstance(found, Located) else found


def _fuse(found: Located, graph: GraphView) -> Match | Refusal:
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
        if not found.is_masked or bias is None:
            return op.Attention(*inputs, scale=scale, outputs=1)
        shown, is_hidden = without_hidden_rows(op, bias)
        return hide(op, is_hidden, op.Attention(q, k, v, shown, scale=scale, outputs=1))

    return Match([found.result], build)


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


class SharedHeads(Rule):
    """``softmax(q @ repeated(k).T * scale + bias) @ repeated(v)`` of one query for each head: the
    queries of a group are rows over one head, and keys and values are read where they are.

    A step of a decoder copied its whole cache for each group.
    """

    roots = ("MatMul",)
    reads = ("Softmax", "Where")
    lowers = "bytes of keys and values"

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        found = locate_attention(node, graph)
        return _fold(found, graph) if isinstance(found, Located) else found


def _fold(found: Located, graph: GraphView) -> Match | Refusal | None:
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
        probabilities = op.Softmax(scores, axis=-1)
        if found.is_masked:
            probabilities = op.Where(hides_all(op, scores), 0.0, probabilities)
        return op.Reshape(op.MatMul(probabilities, v), [0, heads, 1, sizes[1]])

    return Match([found.result], build)
