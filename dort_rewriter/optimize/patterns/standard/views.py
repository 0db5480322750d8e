"""Reshapes and their like, the sizes that they are given, and what is computed between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from dort_rewriter.graph.shapes import Dim, may_be_zero, same
from dort_rewriter.graph.writer import Writer
from dort_rewriter.optimize.patterns.base import Match, Refusal, Rule
from dort_rewriter.optimize.view import GraphView, same_sizes

VIEWS = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")


class ReshapeReshape(Rule):
    """``Reshape(Reshape(x)) -> Reshape(x)``   or ``x`` when its shape comes back.

    Flatten, Squeeze and Unsqueeze count as what they are; Unsqueezes stay one.
    """

    roots = VIEWS
    reads = VIEWS
    lowers = "Reshapes of a Reshape"

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
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
    """Write a shape as constants: sizes that stand where they stood as 0, one other as -1, which
    cannot be told where one of them is zero."""
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
    if -1 in target and any(t == 0 and may_be_zero(d) for t, d in zip(target, dims, strict=True)):
        return None
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
    return may_be_zero(dim) or (not isinstance(dim, int) and dim.value is None)


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


class StaticSizes(Rule):
    """``Shape(x)[1:2] -> 16``   when that is its size; any arithmetic on sizes likewise."""

    roots = tuple("Shape Concat Gather Slice Squeeze Unsqueeze Reshape Add Sub Mul Div".split())
    of_type = ir.DataType.INT64

    def match(self, node: ir.Node, graph: GraphView) -> Match | None:
        result = node.outputs[0]
        if (rank := graph.rank(result)) not in (0, 1):
            return None
        sizes = graph.sizes(result)
        if sizes is None or any(not isinstance(d, int) for d in sizes):
            return None
        numbers = list(sizes) if rank else sizes[0]
        return Match([result], lambda op: op.constant(numbers, ir.DataType.INT64))


class ReshapeTarget(Rule):
    """``Reshape(x, Concat(Shape(x)[:1], 4)) -> Reshape(x, [0, 4])``   when symbols allow it."""

    roots = ("Reshape",)
    lowers = "shapes computed at run time"

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        x, computed = node.inputs
        if x is None or computed is None or computed.const_value is not None:
            return None
        source, dims = graph.dims(x), graph.dims(node.outputs[0])
        if source is None or dims is None:
            return None
        if (target := reshape_target(source, dims)) is None:
            return Refusal("two sizes are not told by the input", str(dims))
        return Match([node.outputs[0]], lambda op: op.Reshape(x, target))


class ShapeOfInput(Rule):
    """``Shape(Exp(x)) -> Shape(x)``   for an input ``x`` of the model with the same sizes.

    What was computed need not be kept for its shape, and equal sizes become one node.
    """

    roots = ("Shape",)
    lowers = "Shapes of computed results"

    def match(self, node: ir.Node, graph: GraphView) -> Match | None:
        value = node.inputs[0]
        wanted = graph.sizes(node.outputs[0])
        if value is None or value.is_graph_input() or not wanted:
            return None
        for given in graph.graph.inputs:
            dims = graph.dims(given) or ()
            for start in range(len(dims) - len(wanted) + 1):
                if all(map(same, dims[start : start + len(wanted)], wanted)):
                    return _shape(node, given, start, start + len(wanted), len(dims))
        return None


def _shape(node: ir.Node, given: ir.Value, start: int, end: int, rank: int) -> Match:
    part = {} if (start, end) == (0, rank) else {"start": start, "end": end}
    return Match([node.outputs[0]], lambda op: op.Shape(given, **part))


@dataclass(frozen=True)
class _Operand:
    """What a product reads, before its stack was merged or still to be split."""

    value: ir.Value
    target: list[int] | None
    """The shape to give it; None when it has it."""

    def build(self, op: Writer) -> ir.Value:
        return self.value if self.target is None else op.Reshape(self.value, self.target)


class ReshapeMatMulReshape(Rule):
    """``Reshape(MatMul(Reshape(a), Reshape(b))) -> MatMul(a, b)``   for stacks of matrices.

    One of the two operands may need a Reshape of its own.
    """

    roots = ("Reshape",)
    reads = ("MatMul",)
    lowers = "Reshapes of products"

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        product = node.inputs[0]
        found = graph.producer(product, "MatMul")
        between, result = graph.dims(product), graph.dims(node.outputs[0])
        if found is None or product is None or between is None or result is None:
            return None
        if len(between) < 3 or len(result) < 3 or not same_sizes(between[-2:], result[-2:]):
            return None
        if not graph.used_once(product):
            return Refusal("the product is needed in its first shape", product.name)
        operands = [_operand(v, between, result, graph) for v in found.inputs]
        if operands[0] is None or operands[1] is None:
            return Refusal("an operand cannot be split", str(result))
        if all(o is not None and o.target is not None for o in operands):
            return Refusal("both operands were merged elsewhere", node.name)
        a, b = operands[0], operands[1]
        return Match([node.outputs[0]], lambda op: op.MatMul(a.build(op), b.build(op)))


def _operand(
    value: ir.Value | None, between: tuple[Dim, ...], result: tuple[Dim, ...], graph: GraphView
) -> _Operand | None:
    """Find an operand of the product whose stack is that of the result."""
    dims = graph.dims(value)
    if value is None or dims is None or len(dims) != len(between):
        return None
    wanted = (*result[:-2], *dims[-2:])
    merge = graph.producer(value, "Reshape")
    if merge is not None and (source := merge.inputs[0]) is not None:
        before = graph.dims(source)
        if same_sizes(before, wanted):
            return _Operand(source, None)
        if before is not None and (target := reshape_target(before, wanted)) is not None:
            return _Operand(source, target)
    if not same_sizes(dims[:-2], between[:-2]):
        return None  # it broadcasts
    target = reshape_target(dims, wanted)
    return None if target is None else _Operand(value, target)


_REDUCTIONS = tuple(
    f"Reduce{kind}" for kind in "L1 L2 LogSum LogSumExp Max Mean Min Prod Sum SumSquare".split()
)


class ReduceReshape(Rule):
    """``Squeeze(ReduceSum(x, keepdims=1)) -> ReduceSum(x, keepdims=0)``   and the reverse.

    Reshape and Unsqueeze count when they do the same.
    """

    roots = ("Squeeze", "Reshape", "Unsqueeze")
    reads = _REDUCTIONS

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        value = node.inputs[0]
        reduction = graph.producer(value, *_REDUCTIONS)
        if reduction is None or value is None or (x := reduction.inputs[0]) is None:
            return None
        dims, result = graph.dims(x), graph.dims(node.outputs[0])
        if dims is None or result is None or (axes := graph.axes(reduction, len(dims))) is None:
            return None
        keep = 1 - graph.attribute(reduction, "keepdims", 1)
        if not axes and graph.attribute(reduction, "noop_with_empty_axes", 0):
            return None
        if not _is_reduced(dims, axes or list(range(len(dims))), keep, result):
            return None
        if not graph.used_once(value):
            return Refusal("the reduction is needed as it is", value.name)
        inputs = [v for v in reduction.inputs if v is not None]
        return Match([node.outputs[0]], lambda op: op.again(reduction, *inputs, keepdims=keep))


def _is_reduced(
    dims: tuple[Dim, ...], axes: list[int], keep: int, result: tuple[Dim, ...]
) -> bool:
    """Whether a shape is that of a reduction which keeps its axes, or does not."""
    wanted = [1 if i in axes else d for i, d in enumerate(dims) if keep or i not in axes]
    return same_sizes(wanted, result)
