"""Products of stacks of matrices, whose axes of the stack torch merges before and splits after."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from dort_rewriter.graph.shapes import same
from dort_rewriter.graph.writer import Writer
from dort_rewriter.optimize.patterns.base import Match, Refusal, Rule
from dort_rewriter.optimize.patterns.standard.views import reshape_target
from dort_rewriter.optimize.view import Dim, GraphView

__all__ = ["ReshapeMatMulReshape"]


@dataclass(frozen=True)
class _Operand:
    """What a product reads, before its stack was merged or still to be split."""

    value: ir.Value
    target: list[int] | None
    """The shape to give it; None when it has it."""

    def build(self, op: Writer) -> ir.Value:
        value: ir.Value = self.value
        return value if self.target is None else op.Reshape(value, self.target)


class ReshapeMatMulReshape(Rule):
    """``Reshape(MatMul(Reshape(a), Reshape(b))) -> MatMul(a, b)``   for stacks of matrices.

    One of the two operands may need a Reshape of its own.
    """

    roots = ("Reshape",)
    reads = ("MatMul",)
    lowers = "Reshapes of products"

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        """What to replace."""
        product = node.inputs[0]
        found = graph.producer(product, "MatMul")
        between, result = graph.dims(product), graph.dims(node.outputs[0])
        if found is None or product is None or between is None or result is None:
            return None
        if len(between) < 3 or len(result) < 3 or not _ends_alike(between, result):
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
        if before is not None and len(before) == len(wanted) and all(map(same, before, wanted)):
            return _Operand(source, None)
        if before is not None and (target := reshape_target(before, wanted)) is not None:
            return _Operand(source, target)
    if not all(map(same, dims[:-2], between[:-2])):
        return None  # it broadcasts
    target = reshape_target(dims, wanted)
    return None if target is None else _Operand(value, target)


def _ends_alike(a: tuple[Dim, ...], b: tuple[Dim, ...]) -> bool:
    return all(map(same, a[-2:], b[-2:]))
