"""Pieces of tensors that are cut out and put together again."""

from __future__ import annotations

from typing import NamedTuple

import onnx_ir as ir

from dort_rewriter.graph.shapes import Dim, same
from dort_rewriter.optimize.patterns.base import Match, Refusal, Rule
from dort_rewriter.optimize.view import GraphView

__all__ = ["PadPadAdd"]


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
