"""Attention with heads of keys and values that groups of queries share, as one kernel.

NOTE: the kernel is causal, and made for texts that are generated: here each text is the first
part of one, and what it would keep of it for the next is not used. With another mask, or sizes
that are not known, MultiHeadAttention reads repeated heads instead.
"""

from __future__ import annotations

import onnx_ir as ir

from dort_rewriter.graph.writer import Writer
from dort_rewriter.optimize.patterns.base import Match, Refusal, Rule
from dort_rewriter.optimize.patterns.recognize.attention import Located, locate_attention
from dort_rewriter.optimize.patterns.recognize.causal import is_causal
from dort_rewriter.optimize.patterns.recognize.heads import shared_heads
from dort_rewriter.optimize.view import GraphView

__all__ = ["GroupQueryAttention", "GroupQueryRotary"]

_OPERATOR = "com.microsoft::GroupQueryAttention"
_SWAP = [0, 2, 1, 3]


class GroupQueryAttention(Rule):
    """``softmax(q @ repeat(k).T * scale + causal) @ repeat(v) -> GroupQueryAttention(q, k, v)``.

    The mask is a constant, no position is hidden but later ones, and all sizes are known.
    """

    roots = ("MatMul", "com.microsoft::FusedMatMul", "Where")
    reads = ("Softmax", "Equal")
    lowers = "Softmax nodes"

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        """What to replace."""
        located = locate_attention(node, graph)
        return _fuse(located, graph) if isinstance(located, Located) else located


def _fuse(located: Located, graph: GraphView) -> Match | Refusal | None:
    found = located.attention
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
        whole: ir.Value = op.Transpose(split, perm=_SWAP)
        return whole

    return Match([located.result], build)


class GroupQueryRotary(Rule):
    """``GroupQueryAttention(RotaryEmbedding(q), RotaryEmbedding(k)) -> GroupQueryAttention(q, k)``

    The kernel rotates by the same tables, from the first position on.
    """

    roots = (_OPERATOR,)
    lowers = "RotaryEmbedding nodes"

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        """What to replace."""
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
        attributes = {name: a.value for name, a in node.attributes.items()}

        def build(op: Writer) -> list[ir.Value]:
            inputs = list(node.inputs[:7])
            for i, (source, shape) in enumerate(sources):
                assert shape is not None
                batch, heads, positions, size = shape
                turned = op.Transpose(source, perm=_SWAP)
                inputs[i] = op.Reshape(turned, [batch, positions, heads * size])
            results = op.call(
                "GroupQueryAttention",
                *inputs,
                q.inputs[2],
                q.inputs[3],
                domain="com.microsoft",
                outputs=3,
                **{**attributes, "do_rotary": 1},
            )
            return list(results)

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
