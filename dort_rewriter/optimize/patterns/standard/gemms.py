"""Products of matrices: what stands around a MatMul or a Gemm becomes part of it.

NOTE: only matrices are touched: a MatMul with a vector after a Transpose is computed wrongly by
onnxruntime, and no rule here makes one.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from dort_rewriter.graph.shapes import may_be_zero
from dort_rewriter.optimize.patterns.base import Match, Refusal, Rule
from dort_rewriter.optimize.view import GraphView


class TransposeMatMul(Rule):
    """``MatMul(Transpose(a), b) -> Gemm(a, b, transA=1)``   and so on, for matrices.

    A Transpose before a Gemm is taken in likewise.
    """

    roots = ("MatMul", "Gemm")
    reads = ("Transpose",)
    lowers = "products of a Transpose"

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        a, b = node.inputs[:2]
        if a is None or b is None:
            return None
        first, second = (graph.producer(v, "Transpose") for v in (a, b))
        if (first is None and second is None) or graph.rank(a) != 2 or graph.rank(b) != 2:
            return None
        flags = {k: v.value for k, v in node.attributes.items()}
        for flag, transpose in (("transA", first), ("transB", second)):
            if transpose is not None:
                flags[flag] = 1 - flags.get(flag, 0)
        a = a if first is None else first.inputs[0]
        b = b if second is None else second.inputs[0]
        if (refusal := _refused(graph, a, b, flags)) is not None:
            return refusal
        rest = node.inputs[2:]
        return Match([node.outputs[0]], lambda op: op.Gemm(a, b, *rest, **_without_zeros(flags)))


class MatMulAdd(Rule):
    """``Add(MatMul(a, b), c) -> Gemm(a, b, c)``   for matrices, when ``c`` is not larger.

    A Gemm without a third input takes it in likewise. The sum is rounded as that of ``addmm`` is.
    """

    roots = ("Add",)
    reads = ("MatMul", "Gemm")

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        product, c = node.inputs
        if not _is_product(product, graph):
            product, c = c, product
        if not _is_product(product, graph) or product is None or c is None:
            return None
        if not graph.used_once(product):
            return Refusal("the product is needed without the sum", product.name)
        if not graph.same_shape(product, node.outputs[0]):
            return Refusal("the sum is larger than the product", str(c.shape))
        found = graph.producer(product)
        assert found is not None
        a, b = found.inputs[:2]
        flags = {k: v.value for k, v in found.attributes.items()}
        if (refusal := _refused(graph, a, b, flags)) is not None:
            return refusal
        return Match([node.outputs[0]], lambda op: op.Gemm(a, b, c, **flags))


class GemmTranspose(Rule):
    """``Transpose(Gemm(a, b)) -> Gemm(b, a, transA=1, transB=1)``   without a third input.

    A MatMul of matrices likewise.
    """

    roots = ("Transpose",)
    reads = ("MatMul", "Gemm")

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        product = node.inputs[0]
        found = graph.producer(product)
        if found is None or product is None or not _is_product(product, graph):
            return None
        if not graph.used_once(product):
            return Refusal("the product is needed as it is", product.name)
        a, b = found.inputs[:2]
        flags = {k: v.value for k, v in found.attributes.items()}
        flags |= {"transA": 1 - flags.get("transB", 0), "transB": 1 - flags.get("transA", 0)}
        if (refusal := _refused(graph, b, a, flags)) is not None:
            return refusal
        return Match([node.outputs[0]], lambda op: op.Gemm(b, a, **_without_zeros(flags)))


def _is_product(value: ir.Value | None, graph: GraphView) -> bool:
    """Whether a value is the product of two matrices, nothing added to it yet."""
    node = graph.producer(value, "MatMul", "Gemm")
    if node is None or (len(node.inputs) > 2 and node.inputs[2] is not None):
        return False
    return all(graph.rank(v) == 2 for v in node.inputs[:2])


def _refused(
    graph: GraphView, a: ir.Value | None, b: ir.Value | None, flags: Mapping[str, float]
) -> Refusal | None:
    """Why a product of matrices cannot be a Gemm."""
    if a is None or not graph.runs("Gemm", [a, b], domain=""):
        return Refusal("Gemm has no kernel for this type", None if a is None else a.dtype)
    summed = a.shape[0 if flags.get("transA") else 1] if a.shape is not None else None
    if summed is not None and may_be_zero(summed):  # an error in onnxruntime 1.19
        return Refusal("the size summed over may be zero", str(summed))
    return None


def _without_zeros(flags: dict[str, float]) -> dict[str, float]:
    """Leave out what is the default."""
    return {k: v for k, v in flags.items() if v or not k.startswith("trans")}
