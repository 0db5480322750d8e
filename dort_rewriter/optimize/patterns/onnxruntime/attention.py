"""Attention as kernels of onnxruntime: rotary embedding, many heads, heads in groups.

NOTE: the kernel for groups is causal, and made for texts that are generated: here each text is the
first part of one, and what it would keep of it for the next is not used. With another mask, or
sizes that are not known, MultiHeadAttention reads repeated heads instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from dort_rewriter.graph.shapes import same
from dort_rewriter.graph.writer import Writer
from dort_rewriter.optimize.patterns.base import Match, Refusal, Rule
from dort_rewriter.optimize.patterns.recognize.attention import (
    Located,
    hide,
    is_causal,
    locate_attention,
    shared_heads,
    without_hidden_rows,
)
from dort_rewriter.optimize.patterns.recognize.rotary import Rotary, find_rotary
from dort_rewriter.optimize.view import GraphView


class ContribRotaryEmbedding(Rule):
    """``x * cos + concat(-x[half:], x[:half]) * sin -> RotaryEmbedding(x, 0, cos, sin)``.

    The tables hold both halves alike, ``concat(f, f)``, for all batches and heads.
    """

    roots = ("Add",)
    reads = ("Mul", "Cast", "Concat")
    lowers = "elements of tables and of their products"

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        found = find_rotary(node, graph)
        if not isinstance(found, Rotary):
            return found
        x, first = found.x, ir.Value(name="first", type=ir.TensorType(ir.DataType.INT64))
        if not graph.runs("RotaryEmbedding", [x, first, x, x]):
            return Refusal("no kernel that is faster for the type", x.dtype)

        def build(op: Writer) -> ir.Value:
            cos, sin = (
                op.Reshape(half(op), [-1, found.size // 2]) for half in (found.cos, found.sin)
            )
            return op.call(
                "RotaryEmbedding", x, op.constant([0]), cos, sin, domain="com.microsoft"
            )

        return Match([node.outputs[0]], build)


_SWAP = [0, 2, 1, 3]
_EXAMPLE = {"batch": 2, "heads": 3, "queries": 4, "keys": 5, "size": 8}


class MultiHeadAttention(Rule):
    """``softmax(q @ k.T * scale + bias) @ v -> MultiHeadAttention(q, k, v, bias)``.

    A ``Where`` that gives zero where the bias masks all keys is applied to the result. The bias
    has one head or all, one query or all, and all keys. One that is known to be causal is left
    out: the kernel has an attribute for it.
    """

    roots = ("MatMul", "com.microsoft::FusedMatMul")
    reads = ("Softmax", "Where")
    lowers = "Softmax nodes"

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        found = locate_attention(node, graph)
        return _fuse(found, graph) if isinstance(found, Located) else found


@dataclass(frozen=True)
class _Sizes:
    heads: int
    size: int
    """Of a head."""
    bias: tuple[bool, bool] | None
    """Whether the bias has all batches, and all heads."""
    rows: int | None = None
    """The queries for which the one row of the bias is repeated."""


def _measure(found: Located, graph: GraphView) -> _Sizes | Refusal:
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


def _runs(found: Located, sizes: _Sizes, graph: GraphView) -> bool:
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


def _fuse(found: Located, graph: GraphView) -> Match | Refusal:
    attributes = {}
    if is_causal(found.bias, graph):
        found = replace(found, bias=None, is_masked=False)
        attributes = {"unidirectional": 1}
    sizes = _measure(found, graph)
    if isinstance(sizes, Refusal):
        return sizes
    if found.is_masked and (sizes.bias is None or sizes.bias[1]):
        return Refusal("the heads mask different keys", str(graph.dims(found.bias)))
    if not _runs(found, sizes, graph):
        return Refusal("no kernel for these types and shapes", found.q.dtype)
    heads, size = sizes.heads, sizes.size

    def build(op: Writer) -> ir.Value:
        bias = found.bias
        if bias is not None and graph.rank(bias) == 2:
            bias = op.Unsqueeze(bias, [0, 1])
        is_hidden = None
        if found.is_masked and bias is not None:
            bias, is_hidden = without_hidden_rows(op, bias)
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
        if is_hidden is not None:
            y = hide(op, op.Squeeze(is_hidden, [1]), y)
        return op.Transpose(op.Reshape(y, [0, 0, heads, size]), perm=_SWAP)

    return Match([found.result], build)


_OPERATOR = "com.microsoft::GroupQueryAttention"


class GroupQueryAttention(Rule):
    """``softmax(q @ repeat(k).T * scale + causal) @ repeat(v) -> GroupQueryAttention(q, k, v)``.

    The mask is a constant, no position is hidden but later ones, and all sizes are known.
    """

    roots = ("MatMul", "com.microsoft::FusedMatMul")
    reads = ("Softmax", "Where")
    lowers = "Softmax nodes"

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        found = locate_attention(node, graph)
        return _fuse_groups(found, graph) if isinstance(found, Located) else found


def _fuse_groups(found: Located, graph: GraphView) -> Match | Refusal | None:
    sources = shared_heads([found.k, found.v], graph)
    if sources is None:
        return None
    if found.q.dtype != ir.DataType.FLOAT:
        return Refusal("computed in another type than float32", found.q.dtype)
    q, k, v = (graph.static(x) for x in (found.q, *sources))
    if q is None or k is None or v is None or len(q) != 4:
        return Refusal("an unknown size", str(graph.dims(found.q)))
    batch, heads, positions, size = q
    groups = k[1]
    if k != v or k != (batch, groups, 1, positions, size) or heads % groups or heads == groups:
        return Refusal("queries, keys and values do not fit", f"{q}, {k}, {v}")
    if not is_causal(found.bias, graph):
        return Refusal("the mask is not known to be causal", str(graph.dims(found.bias)))
    if size % 8:
        return Refusal("a size of heads that the kernel does not take", size)
    length = ir.Value(name="length", type=ir.TensorType(ir.DataType.INT32))
    inputs = [found.q, *sources, None, None, length, length]
    if not graph.runs(  # NOTE: not tried on zeros: 1.19 crashes on a length of 0
        "GroupQueryAttention", inputs, outputs=3, num_heads=heads, kv_num_heads=groups
    ):
        return Refusal("no kernel for the type", found.q.dtype)

    def build(op: Writer) -> ir.Value:
        rows = op.Reshape(op.Transpose(found.q, perm=_SWAP), [batch, positions, heads * size])
        shared = []
        for source in sources:
            split = op.Reshape(source, [batch, groups, positions, size])
            flat = [batch, positions, groups * size]
            shared.append(op.Reshape(op.Transpose(split, perm=_SWAP), flat))
        y, _, _ = op.call(
            "GroupQueryAttention",
            rows,
            *shared,
            None,
            None,
            op.constant([positions - 1] * batch, ir.DataType.INT32),
            op.constant(positions, ir.DataType.INT32),
            domain="com.microsoft",
            outputs=3,
            scale=found.scale,
            num_heads=heads,
            kv_num_heads=groups,
        )
        y.shape = rows.shape
        split = op.Reshape(y, [batch, positions, heads, size])
        return op.Transpose(split, perm=_SWAP)

    return Match([found.result], build)


class GroupQueryRotary(Rule):
    """``GroupQueryAttention(RotaryEmbedding(q), RotaryEmbedding(k)) -> GroupQueryAttention(q, k)``

    The kernel rotates by the same tables, from the first position on.
    """

    roots = (_OPERATOR,)
    lowers = "RotaryEmbedding nodes"

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        if graph.attribute(node, "do_rotary", 0):
            return None
        q, k = (_rotated(v, graph) for v in node.inputs[:2])
        if q is None or k is None:
            return None
        if q.inputs[2] is not k.inputs[2] or q.inputs[3] is not k.inputs[3]:
            return Refusal("queries and keys have tables of their own", node.name)
        shapes = [graph.static(rotation.inputs[0]) for rotation in (q, k)]
        if shapes[0] is None or shapes[1] is None:
            return Refusal("an unknown size", node.name)
        if shapes[0][3] % 16:
            return Refusal("a size of heads that the kernel does not rotate", shapes[0][3])
        sources = [
            (rotation.inputs[0], shape) for rotation, shape in zip((q, k), shapes, strict=True)
        ]

        def build(op: Writer) -> Sequence[ir.Value]:
            inputs = list(node.inputs[:7])
            for i, (source, shape) in enumerate(sources):
                assert shape is not None
                batch, heads, positions, size = shape
                turned = op.Transpose(source, perm=_SWAP)
                inputs[i] = op.Reshape(turned, [batch, positions, heads * size])
            return op.again(node, *inputs, *q.inputs[2:4], outputs=3, do_rotary=1)

        return Match(node.outputs, build)


def _rotated(value: ir.Value | None, graph: GraphView) -> ir.Node | None:
    """The rotation, four axes and from position 0, that queries or keys come from."""
    merge = graph.producer(value, "Reshape")
    inner = None if merge is None else merge.inputs[0]
    turned = graph.producer(inner, "Transpose")
    if turned is not None:
        inner = turned.inputs[0]
    rotation = graph.producer(inner, "com.microsoft::RotaryEmbedding")
    if rotation is None or inner is None or rotation.attributes:
        return None
    dims = graph.dims(rotation.inputs[0])
    if dims is None or len(dims) != 4 or not graph.used_once(inner):
        return None
    perm = None if turned is None else list(graph.attribute(turned, "perm", []))
    if perm != _SWAP and not (turned is None and dims[1] == 1):  # one head need not be moved
        return None
    return rotation if graph.integers(rotation.inputs[1]) == [0] else None
