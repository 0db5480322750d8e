"""Pieces of tensors that are cut out and put together again."""

from __future__ import annotations

from typing import NamedTuple

import onnx_ir as ir

from dort_rewriter.graph.shapes import Dim, same
from dort_rewriter.optimize.patterns.base import Match, Refusal, Rule
from dort_rewriter.optimize.patterns.recognize.operands import slice_of
from dort_rewriter.optimize.view import GraphView

__all__ = ["ConcatConcat", "ConcatSlice", "PadPadAdd", "SliceSlice", "SplitConcat"]


class SliceSlice(Rule):
    """``Slice(Slice(x, a, b), c, d) -> Slice(x, a + c, a + d)``   along one axis."""

    roots = ("Slice",)
    reads = ("Slice",)
    lowers = "Slices of a Slice"

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        """What to replace."""
        outer = slice_of(node, graph)
        inner = slice_of(graph.producer(node.inputs[0], "Slice"), graph)
        if outer is None or inner is None:
            return None
        if outer.axis != inner.axis:
            return Refusal("they cut different axes", (inner.axis, outer.axis))
        start = inner.start + outer.start
        end = min(inner.start + outer.end, inner.end)
        return Match(
            [node.outputs[0]],
            lambda op: op.Slice(inner.source, [start], [end], [inner.axis], [1]),
        )


class ConcatSlice(Rule):
    """``Slice(Concat(a, b)) -> a``   when one part is cut out again, ``Slice(a)`` when less."""

    roots = ("Slice",)
    reads = ("Concat",)
    lowers = "Slices of a Concat"

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        """What to replace."""
        concat = graph.producer(node.inputs[0], "Concat")
        if concat is None or (piece := slice_of(node, graph)) is None:
            return None
        rank = graph.rank(piece.source)
        if rank is None or concat.attributes["axis"].as_int() % rank != piece.axis:
            return None
        at = 0
        for part in concat.inputs:
            dims = graph.dims(part)
            size = dims[piece.axis] if dims else None
            if not isinstance(size, int) or part is None:
                return Refusal("the size of a part is unknown", str(dims))
            if at <= piece.start and piece.end <= at + size:
                start, end = piece.start - at, piece.end - at
                if end - start == size:
                    return Match.of_known(node, part)
                return _slice(node, part, start, end, piece.axis)
            at += size
        return Refusal("it takes from several parts", tuple(piece[1:]))


def _slice(node: ir.Node, part: ir.Value, start: int, end: int, axis: int) -> Match:
    return Match([node.outputs[0]], lambda op: op.Slice(part, [start], [end], [axis], [1]))


class PadPadAdd(Rule):
    """``Add(Pad(x, [m, 0]), Pad(y, [0, n])) -> Concat(y, x)``   when each fills the other's gap.

    The gradient of a tensor that was cut in two. The sign of a zero may differ.
    """

    roots = ("Add",)
    reads = ("Pad",)

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        """What to replace."""
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


class SplitConcat(Rule):
    """``Concat(*Split(x)) -> x``   when all parts come back in order, along the same axis."""

    roots = ("Concat",)
    reads = ("Split",)

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        """What to replace."""
        split = graph.producer(node.inputs[0], "Split")
        if split is None or (x := split.inputs[0]) is None or (rank := graph.rank(x)) is None:
            return None
        if list(split.outputs) != list(node.inputs):
            return Refusal("the parts are not those of the Split, in order", node.name)
        axes = (graph.attribute(split, "axis", 0) % rank, graph.attribute(node, "axis") % rank)
        if axes[0] != axes[1]:
            return Refusal("the axes differ", axes)
        return Match.of_known(node, x)


class ConcatConcat(Rule):
    """``Concat(Concat(a, b), c) -> Concat(a, b, c)``   when nothing else reads the inner one."""

    roots = ("Concat",)
    reads = ("Concat",)

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        """What to replace."""
        result = node.outputs[0]
        axis = _concat_axis(node, graph)
        if axis is None:
            return None
        if graph.used_once(result) and _concat_axis(graph.consumers(result)[0], graph) == axis:
            return None  # the outermost takes all in at once: a long chain is walked once
        parts: list[ir.Value | None] = []
        waiting = list(reversed(node.inputs))
        while waiting:
            value = waiting.pop()
            inner = graph.producer(value, "Concat")
            taken = inner is not None and value is not None and graph.used_once(value)
            if inner is None or not taken or _concat_axis(inner, graph) != axis:
                parts.append(value)
            else:
                waiting += reversed(inner.inputs)
        if len(parts) == len(node.inputs):
            return None
        return Match([result], lambda op: op.Concat(*parts, axis=axis))


def _concat_axis(node: ir.Node, graph: GraphView) -> int | None:
    """The axis of a Concat, counted from the first; None for any other node."""
    rank = graph.rank(node.outputs[0])
    if node.op_type != "Concat" or node.domain or not rank:
        return None
    return int(graph.attribute(node, "axis")) % rank
