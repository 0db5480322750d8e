"""Reshape, Flatten, Squeeze, Unsqueeze: the same elements in the same order."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from dort_rewriter.graph.shapes import same
from dort_rewriter.optimize.patterns.base import Match, Refusal, Rule
from dort_rewriter.optimize.view import Dim, GraphView

__all__ = ["ReshapeReshape", "ShapeBasedIdentity", "reshape_target"]

VIEWS = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")


class ReshapeReshape(Rule):
    """``Reshape(Reshape(x)) -> Reshape(x)``   or ``x`` when its shape comes back.

    Flatten, Squeeze and Unsqueeze count as what they are; Unsqueezes stay one.
    """

    roots = VIEWS
    reads = VIEWS
    lowers = "Reshapes of a Reshape"

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        """What to replace."""
        first = graph.producer(node.inputs[0], *VIEWS)
        if first is None or (x := first.inputs[0]) is None:
            return None
        result = node.outputs[0]
        source, dims = graph.dims(x), graph.dims(result)
        if source is None or dims is None:
            return Refusal("a rank is unknown", result.name)
        if graph.same_shape(x, result):
            return Match.of_known(node, x)
        if (axes := _both_unsqueeze(first, node, graph)) is not None:
            return Match([result], lambda op: op.Unsqueeze(x, axes))
        if (target := reshape_target(source, dims)) is not None:
            return Match([result], lambda op: op.Reshape(x, target))
        computed = node.inputs[1] if node.op_type == "Reshape" else None
        sizes = graph.sizes(computed)
        if computed is None or sizes is None or any(_may_copy(d) for d in sizes):
            return Refusal("the shape depends on the one between", str(dims))
        return Match([result], lambda op: op.Reshape(x, computed))


class ShapeBasedIdentity(Rule):
    """``Reshape(x) -> x``   when the shape is the same; Expand and Slice likewise.

    A Pad is one that does nothing when it pads by nothing.
    """

    roots = (*VIEWS, "Expand", "Slice", "Pad")

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        """What to replace."""
        x = node.inputs[0]
        if x is None:
            return None
        if node.op_type == "Pad":
            pads = graph.sizes(node.inputs[1])
            return Match.of_known(node, x) if pads and not any(_may_pad(d) for d in pads) else None
        if node.op_type == "Slice" and _takes_all(node, graph):
            return Match.of_known(node, x)
        if not graph.same_shape(x, node.outputs[0]):
            return None
        if node.op_type == "Slice" and len(node.inputs) > 4:
            steps = graph.integers(node.inputs[4])
            if steps is None or any(s < 0 for s in steps):
                return Refusal("a step may be negative", steps)
        return Match.of_known(node, x)


def reshape_target(source: Sequence[Dim], dims: Sequence[Dim]) -> list[int] | None:
    """Write a shape as constants: sizes that stand where they stood as 0, one other as -1."""
    target: list[int] = []
    for i, dim in enumerate(dims):
        if isinstance(dim, int):
            if dim == 0:
                return None
            target.append(dim)
        elif i < len(source) and same(source[i], dim):
            target.append(0)
        else:
            target.append(-1)
    return target if target.count(-1) <= 1 else None


def _both_unsqueeze(first: ir.Node, second: ir.Node, graph: GraphView) -> list[int] | None:
    """The axes of one Unsqueeze for two."""
    rank = graph.rank(second.outputs[0])
    if first.op_type != "Unsqueeze" or second.op_type != "Unsqueeze" or rank is None:
        return None
    outer = graph.axes(second, rank)
    inner = graph.axes(first, graph.rank(first.outputs[0]))
    if outer is None or inner is None:
        return None
    kept = [i for i in range(rank) if i not in outer]
    return sorted([*outer, *(kept[i] for i in inner)])


def _may_copy(dim: Dim) -> bool:
    """Whether a size in a target may be 0: there it means that of the input."""
    return dim == 0 if isinstance(dim, int) else dim.value is None


def _takes_all(node: ir.Node, graph: GraphView) -> bool:
    """Whether a Slice starts at 0 and ends where each axis does, by steps of 1."""
    dims = graph.dims(node.inputs[0])
    starts, ends, *rest = (graph.sizes(v) for v in node.inputs[1:])
    axes = rest[0] if rest else tuple(range(len(starts or ())))
    if dims is None or starts is None or ends is None or axes is None:
        return False
    if any(s != 0 for s in starts) or (len(rest) > 1 and set(rest[1] or (0,)) != {1}):
        return False
    return all(isinstance(a, int) and same(dims[a], e) for a, e in zip(axes, ends, strict=True))


def _may_pad(dim: Dim) -> bool:
    """Whether a pad is anything but 0. NOTE: 1 in front and -1 at the end keep the shape."""
    return not isinstance(dim, int) or dim != 0
