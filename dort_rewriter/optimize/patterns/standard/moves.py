"""Expand, Transpose and Pad: joined, left out, and moved past elementwise operators."""

from __future__ import annotations

from typing import NamedTuple

import onnx_ir as ir

from dort_rewriter.graph.shapes import Dim, broadcast, same
from dort_rewriter.optimize.patterns.base import Match, Refusal, Rule
from dort_rewriter.optimize.patterns.standard.views import reshape_target
from dort_rewriter.optimize.view import GraphView, same_sizes

UNARY = tuple(
    (
        "Abs Cast Ceil Cos Erf Exp Floor IsInf IsNaN LeakyRelu Log Neg Not Reciprocal Relu "
        "Round Sigmoid Sign Sin Softplus Sqrt Tanh"
    ).split()
)
"""With one input, and with attributes that do not depend on shapes."""

BROADCASTING = tuple(
    (
        "Add And Div Equal Greater GreaterOrEqual Less LessOrEqual Max Min Mod Mul Or Pow Sub "
        "Where Xor"
    ).split()
)
"""With inputs that broadcast to the shape of the result."""


class ExpandBroadcast(Rule):
    """``Mul(Expand(x), y) -> Mul(x, y)``   when ``y`` makes the result as large by itself.

    Any operator that broadcasts, any of its inputs.
    """

    roots = BROADCASTING
    reads = ("Expand",)
    lowers = "elementwise operators that read an Expand"

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        sources = [_before_expand(v, graph) for v in node.inputs]
        if all(s is v for s, v in zip(sources, node.inputs, strict=True)):
            return None
        if not _is_shape(node.outputs[0], sources, graph):
            sources = _drop_one(node, sources, graph)
        if not sources:
            return Refusal("the result would be smaller", str(node.outputs[0].shape))
        return Match([node.outputs[0]], lambda op: op.again(node, *sources))


class ExpandSwap(Rule):
    """``Exp(Expand(x)) -> Expand(Exp(x))``   and ``Mul(Expand(x), y) -> Expand(Mul(x, y))``,
    when ``y`` makes the product no larger than ``x``."""

    roots = (*UNARY, *BROADCASTING)
    reads = ("Expand",)
    lowers = "elements computed"

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        places = [i for i, v in enumerate(node.inputs) if graph.producer(v, "Expand") is not None]
        if len(places) != 1:
            return None
        (at,) = places
        value = node.inputs[at]
        expand = graph.producer(value)
        if value is None or expand is None or (x := expand.inputs[0]) is None:
            return None
        target, result = expand.inputs[1], node.outputs[0]
        if not graph.used_once(value):
            return Refusal("the expanded value is needed", value.name)
        inputs = [*node.inputs[:at], x, *node.inputs[at + 1 :]]
        if not graph.same_shape(value, result) or not _is_shape(x, inputs, graph):
            return Refusal("another input makes the result larger", str(result.shape))
        return Match([result], lambda op: op.Expand(op.again(node, *inputs), target))


def _is_shape(value: ir.Value, inputs: list[ir.Value | None], graph: GraphView) -> bool:
    """Whether some inputs broadcast to the shape of a value."""
    shapes = [graph.dims(v) for v in inputs]
    known = [s for s in shapes if s is not None]
    return len(known) == len(shapes) and same_sizes(broadcast(known), value.shape)


def _before_expand(value: ir.Value | None, graph: GraphView) -> ir.Value | None:
    expand = graph.producer(value, "Expand")
    return value if expand is None else expand.inputs[0]


def _drop_one(
    node: ir.Node, sources: list[ir.Value | None], graph: GraphView
) -> list[ir.Value | None]:
    """The inputs of a node with one Expand left out; [] when each is needed."""
    for i, source in enumerate(sources):
        inputs = [*node.inputs[:i], source, *node.inputs[i + 1 :]]
        if source is not node.inputs[i] and _is_shape(node.outputs[0], inputs, graph):
            return inputs
    return []


class TransposeTranspose(Rule):
    """``Transpose(Transpose(x, p), q) -> Transpose(x, p[q])``   or ``x`` when that is in order.

    A product reads its last axes in either order for nothing: a second Transpose of those stays,
    so that the first copies whole rows.

    NOTE: an identity Transpose must not stay: onnxruntime 1.19 computes it wrongly before a
    MatMul and an Add.
    """

    roots = ("Transpose",)

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        first = graph.producer(node.inputs[0], "Transpose")
        perm = outer = graph.order(node)
        x = node.inputs[0]
        if first is not None:
            inner = graph.order(first)
            perm = None if perm is None or inner is None else [inner[i] for i in perm]
            x = first.inputs[0]
        if perm is None or x is None or (first is None and perm != sorted(perm)):
            return None
        if perm == sorted(perm):
            return Match([node.outputs[0]], lambda op: x)
        if outer is not None and _is_swap(outer) and not _is_swap(perm):
            readers = graph.consumers(node.outputs[0])
            if readers and all(r.op_type in ("MatMul", "FusedMatMul") for r in readers):
                return Refusal("products read the last axes in either order", outer)
        return Match([node.outputs[0]], lambda op: op.Transpose(x, perm=perm))


def _is_swap(perm: list[int]) -> bool:
    """Whether the last two axes change places, and nothing else."""
    rank = len(perm)
    return rank > 1 and perm == [*range(rank - 2), rank - 1, rank - 2]


class TransposeEqualReshape(Rule):
    """``Transpose(x) -> Reshape(x)``   when only sizes of 1 change their place."""

    roots = ("Transpose",)
    lowers = "Transpose nodes"

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        x, perm = node.inputs[0], graph.order(node)
        dims = graph.dims(x)
        if x is None or dims is None or perm is None:
            return None
        moved = [i for i in perm if dims[i] != 1]
        if moved != sorted(moved):
            return None
        target = reshape_target(dims, [dims[i] for i in perm])
        if target is None:
            return Refusal("the shape cannot be written down", str(dims))
        return Match([node.outputs[0]], lambda op: op.Reshape(x, target))


class TransposeElementwise(Rule):
    """``Add(Transpose(a), Transpose(b)) -> Transpose(Add(a, b))``   and
    ``Transpose(Exp(Transpose(x))) -> Exp(x)``   when they undo each other.

    Numbers of one element need no Transpose.
    """

    roots = (*UNARY, *BROADCASTING)
    reads = ("Transpose",)

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        transposes = [graph.producer(v, "Transpose") for v in node.inputs]
        perms = [None if t is None else graph.order(t) for t in transposes]
        perm = next((p for p in perms if p is not None), None)
        if perm is None:
            return None
        result = node.outputs[0]
        sources: list[ir.Value | None] = []
        for value, transpose, own in zip(node.inputs, transposes, perms, strict=True):
            if transpose is not None and own == perm:
                sources.append(transpose.inputs[0])
            elif value is not None and graph.static(value) in ((), (1,)):
                sources.append(value)
            else:
                return None
        if any(graph.rank(v) != len(perm) for v in (result, *_larger(node, graph))):
            return None
        gone = {id(t) for t in transposes if t is not None and graph.used_once(t.outputs[0])}
        back = _undone_by(result, perm, graph)
        if len(gone) < 2 and back is None:
            return None
        if back is not None and gone:
            return Match([back], lambda op: op.again(node, *sources))
        return Match([result], lambda op: op.Transpose(op.again(node, *sources), perm=perm))


def _larger(node: ir.Node, graph: GraphView) -> list[ir.Value | None]:
    """The inputs of more than one element."""
    return [v for v in node.inputs if graph.static(v) not in ((), (1,))]


def _undone_by(value: ir.Value, perm: list[int], graph: GraphView) -> ir.Value | None:
    """The result of the only reader of a value when it is a Transpose back."""
    reader = graph.reader(value, "Transpose")
    back = None if reader is None else graph.order(reader)
    if reader is None or back is None or [perm[i] for i in back] != sorted(perm):
        return None
    return reader.outputs[0]


class PadPadAdd(Rule):
    """``Add(Pad(x, [m, 0]), Pad(y, [0, n])) -> Concat(y, x)``   when each fills the other's gap.

    The gradient of a tensor that was cut in two. The sign of a zero may differ.
    """

    roots = ("Add",)
    reads = ("Pad",)

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        pads = [graph.producer(v, "Pad") for v in node.inputs]
        found = [_padding(p, graph) for p in pads]
        if found[0] is None or found[1] is None:
            return None
        first, second = found if found[0].before == 0 else found[::-1]
        if first is None or second is None or first.axis != second.axis:
            return None
        fills = same(first.after, second.size) and same(second.before, first.size)
        if first.before != 0 or second.after != 0 or not fills:
            return Refusal("they overlap or leave a gap", str((first, second)))
        if not all(graph.used_once(v) for v in node.inputs if v is not None):
            return Refusal("a padded part is needed", node.name)
        a, b, axis = first.source, second.source, first.axis
        return Match([node.outputs[0]], lambda op: op.Concat(a, b, axis=axis))


class _Padding(NamedTuple):
    source: ir.Value
    axis: int
    before: Dim
    after: Dim
    size: Dim


def _padding(node: ir.Node | None, graph: GraphView) -> _Padding | None:
    """How a Pad adds zeros to one axis."""
    if node is None or graph.attribute(node, "mode", "constant") != "constant":
        return None
    source, numbers = node.inputs[0], graph.sizes(node.inputs[1])
    fill = node.inputs[2] if len(node.inputs) > 2 else None
    dims = graph.dims(source)
    if source is None or dims is None or numbers is None:
        return None
    if fill is not None and graph.scalar(fill) != 0:
        return None
    half = len(numbers) // 2
    axes = graph.integers(node.inputs[3]) if len(node.inputs) > 3 else list(range(half))
    if axes is None or len(axes) != half:
        return None
    padded = [i for i in range(half) if numbers[i] != 0 or numbers[i + half] != 0]
    if len(padded) != 1:
        return None
    (i,) = padded
    axis = axes[i] % len(dims)
    return _Padding(source, axis, numbers[i], numbers[i + half], dims[axis])
