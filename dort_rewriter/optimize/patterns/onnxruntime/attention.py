"""Attention as one kernel, in inference graphs: training graphs need what is inside."""

from __future__ import annotations

from dataclasses import dataclass, replace

import onnx_ir as ir

from dort_rewriter.graph.shapes import same
from dort_rewriter.graph.writer import Writer
from dort_rewriter.optimize.patterns.base import Match, Refusal, Rule
from dort_rewriter.optimize.patterns.recognize.attention import (
    Attention,
    Located,
    locate_attention,
)
from dort_rewriter.optimize.patterns.recognize.causal import is_causal
from dort_rewriter.optimize.view import GraphView

__all__ = ["MultiHeadAttention"]

_SWAP = [0, 2, 1, 3]
_EXAMPLE = {"batch": 2, "heads": 3, "queries": 4, "keys": 5, "size": 8}


class MultiHeadAttention(Rule):
    """``softmax(q @ k.T * scale + bias) @ v -> MultiHeadAttention(q, k, v, bias)``.

    A ``Where`` that gives zero where the bias masks all keys is applied to the result. The bias
    has one head or all, one query or all, and all keys. One that is known to be causal is left
    out: the kernel has an attribute for it.
    """

    roots = ("MatMul", "com.microsoft::FusedMatMul", "Where")
    reads = ("Softmax", "Equal")
    lowers = "Softmax nodes"

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        """What to replace."""
        located = locate_attention(node, graph)
        return _fuse(located, graph) if isinstance(located, Located) else located


@dataclass(frozen=True)
class _Sizes:
    heads: int
    size: int
    """Of a head."""
    bias: tuple[bool, bool] | None
    """Whether the bias has all batches, and all heads."""
    rows: int | None = None
    """The queries for which the one row of the bias is repeated."""


def _measure(found: Attention, graph: GraphView) -> _Sizes | Refusal:
    q, k, v = (graph.dims(x) for x in (found.q, found.k, found.v))
    if q is None or k is None or v is None or not len(q) == len(k) == len(v) == 4:
        return Refusal("an unknown rank", f"{q}, {k}, {v}")
    heads, size = q[1], q[3]
    if not isinstance(heads, int) or not isinstance(size, int):
        return Refusal("heads of unknown number or size", str(q))
    if not (all(map(same, k, v)) and same(q[0], k[0]) and k[1] == heads and k[3] == size):
        return Refusal("queries, keys and values do not fit", f"{q}, {k}, {v}")
    if found.bias is None:
        return _Sizes(heads, size, None)
    bias = graph.dims(found.bias)
    if bias is not None and len(bias) == 2:
        bias = (1, 1, *bias)
    rows = None
    if bias is not None and len(bias) == 4 and bias[2] == 1 and isinstance(q[2], int):
        rows = q[2] if q[2] > 1 else None
        bias = (*bias[:2], q[2], bias[3])
    if bias is None or len(bias) != 4 or not (same(bias[2], q[2]) and same(bias[3], k[2])):
        return Refusal("the bias has not all queries and keys", str(bias))
    if not (bias[0] == 1 or same(bias[0], q[0])) or bias[1] not in (1, heads):
        return Refusal("the bias has other batches or heads", str(bias))
    return _Sizes(heads, size, (bias[0] != 1, bias[1] != 1), rows)


def _runs(found: Attention, sizes: _Sizes, graph: GraphView) -> bool:
    """NOTE: onnxruntime 1.19 wants a bias for each head, and reads one for all batches wrongly:
    a bias is repeated by kernels only that refuse neither."""
    batch, heads, queries, keys, size = _EXAMPLE.values()
    shapes: list[tuple[int, ...] | None] = [
        (batch, queries, heads * size),
        (batch, heads, keys, size),
        (batch, heads, keys, size),
    ]
    inputs: list[ir.Value | None] = [found.q, found.k, found.v]
    if sizes.bias is not None:
        whole = all(sizes.bias)
        shapes += [None, None, (batch if whole else 1, heads if whole else 1, queries, keys)]
        inputs += [None, None, found.bias]
    return graph.runs("MultiHeadAttention", inputs, shapes=shapes, num_heads=heads)


def _fuse(located: Located, graph: GraphView) -> Match | Refusal:
    found, attributes = located.attention, {}
    if is_causal(found.bias, graph):
        found, attributes = replace(found, bias=None), {"unidirectional": 1}
    sizes = _measure(found, graph)
    if isinstance(sizes, Refusal):
        return sizes
    is_masked = located.is_masked and not attributes
    if is_masked and (sizes.bias is None or sizes.bias[1]):
        return Refusal("the heads mask different keys", str(graph.dims(found.bias)))
    if not _runs(found, sizes, graph):
        return Refusal("no kernel for these types and shapes", found.q.dtype)
    heads, size = sizes.heads, sizes.size

    def build(op: Writer) -> ir.Value:
        bias = found.bias
        if bias is not None and graph.rank(bias) == 2:
            bias = op.Unsqueeze(bias, [0, 1])
        if sizes.rows is not None:
            bias = op.Expand(bias, [1, 1, sizes.rows, 1])
        flat = op.Reshape(op.Transpose(found.q, perm=_SWAP), [0, 0, heads * size])
        extra = () if bias is None else (None, None, bias)
        y = op.call(
            "MultiHeadAttention",
            flat,
            found.k,
            found.v,
            *extra,
            domain="com.microsoft",
            num_heads=heads,
            scale=found.scale,
            **attributes,
        )
        y.shape = flat.shape
        if is_masked:
            rows = op.Transpose(op.ReduceMax(bias, [-1], keepdims=0), perm=[0, 2, 1])
            y = op.Where(op.Equal(rows, -float("inf")), 0.0, y)
        whole: ir.Value = op.Transpose(op.Reshape(y, [0, 0, heads, size]), perm=_SWAP)
        return whole

    return Match([located.result], build)
