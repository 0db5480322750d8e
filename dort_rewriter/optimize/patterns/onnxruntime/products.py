"""Matrix products that transpose and scale what they read.

NOTE: no product with a vector is ever touched: onnxruntime computes FusedMatMul of a transposed
matrix and a vector wrongly, and fuses the Transpose before a MatMul by itself.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import onnx_ir as ir

from dort_rewriter.graph.writer import Writer
from dort_rewriter.optimize.patterns.base import Match, Refusal, Rule
from dort_rewriter.optimize.patterns.recognize.operands import scaled
from dort_rewriter.optimize.view import GraphView

_FUSED = "com.microsoft::FusedMatMul"
_NARROW = (ir.DataType.FLOAT, ir.DataType.FLOAT16)


@dataclass(frozen=True)
class _Product:
    """``alpha * op(a) @ op(b)``."""

    a: ir.Value
    b: ir.Value
    trans_a: bool
    trans_b: bool
    alpha: float

    def build(self, op: Writer) -> ir.Value:
        return op.call(
            "FusedMatMul",
            self.a,
            self.b,
            domain="com.microsoft",
            transA=int(self.trans_a),
            transB=int(self.trans_b),
            alpha=self.alpha,
        )


def _read(node: ir.Node | None, graph: GraphView) -> _Product | Refusal | None:
    if node is None or len(node.inputs) != 2 or None in node.inputs:
        return None
    a, b = node.inputs
    assert a is not None
    assert b is not None
    if min(graph.rank(a) or 0, graph.rank(b) or 0) < 2:
        return Refusal("a vector, or an unknown rank", f"{a.shape}, {b.shape}")
    if graph.attribute(node, "transBatchA", 0) or graph.attribute(node, "transBatchB", 0):
        return Refusal("batches are transposed too", node.name)
    return _Product(
        a,
        b,
        bool(graph.attribute(node, "transA", 0)),
        bool(graph.attribute(node, "transB", 0)),
        float(graph.attribute(node, "alpha", 1.0)),
    )


def _read_alone(value: ir.Value, graph: GraphView) -> _Product | Refusal | None:
    """The product that a value is; refuse one that others read."""
    inner = graph.producer(value, "MatMul", _FUSED)
    if inner is not None and not graph.used_once(value):
        return Refusal("others read the product", value.name)
    return _read(inner, graph)


def _fuse(value: ir.Value, product: _Product, graph: GraphView) -> Match | Refusal:
    refusal = _refusal(product, graph)
    return Match([value], product.build) if refusal is None else refusal


def _refusal(product: _Product, graph: GraphView) -> Refusal | None:
    """Why there cannot be one node for a product."""
    if not graph.runs("FusedMatMul", [product.a, product.b]):
        return Refusal("no kernel for the type", product.a.dtype)
    cast = graph.producer(product.a, "Cast")
    if product.a is product.b and cast is not None and graph.producer(cast.inputs[0], "Transpose"):
        # onnxruntime 1.19 takes the Transpose into the node, and loses one of its two inputs.
        return Refusal("a Transpose behind a Cast is read twice", product.a.name)
    return None


@dataclass(frozen=True)
class _Turned:
    """What a product may read transposed: x with its axes in another order, the last one last."""

    x: ir.Value
    perm: list[int]

    @property
    def is_plain(self) -> bool:
        """Whether nothing but the transposition of the product is left."""
        return self.perm == sorted(self.perm)

    def build(self, op: Writer) -> ir.Value:
        return self.x if self.is_plain else op.Transpose(self.x, perm=self.perm)


def _turned(value: ir.Value | None, graph: GraphView) -> _Turned | None:
    """Whether a value is a Transpose that puts the last axis before the last."""
    node = graph.producer(value, "Transpose")
    rank = graph.rank(value)
    if value is None or node is None or rank is None or rank < 2:
        return None
    perm = list(graph.attribute(node, "perm", range(rank)[::-1]))
    x = node.inputs[0]
    if x is None or perm[-2] != rank - 1:
        return None
    turned = _Turned(x, [*perm[:-2], perm[-1], perm[-2]])
    return turned if turned.is_plain or graph.used_once(value) else None


class FusedMatMul(Rule):
    """``MatMul(Transpose(a), b) -> FusedMatMul(a, b, transA=1)``   and the same for ``b``.

    Others may read the Transpose. One that moves other axes too is left with those: it then
    copies whole rows. Two-dimensional ones become Gemm in the default set.
    """

    roots = ("MatMul", _FUSED)
    reads = ("Transpose",)
    lowers = "transposes that move the last axis before a product"

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        a, b = (_turned(v, graph) for v in node.inputs[:2])
        if a is None and b is None:
            return None
        product = _read(node, graph)
        if not isinstance(product, _Product):
            return product
        read = replace(
            product,
            a=product.a if a is None or not a.is_plain else a.x,
            b=product.b if b is None or not b.is_plain else b.x,
        )
        if (refusal := _refusal(read, graph)) is not None:
            return refusal

        def build(op: Writer) -> ir.Value:
            found = product
            if a is not None:
                found = replace(found, a=a.build(op), trans_a=not found.trans_a)
            if b is not None:
                found = replace(found, b=b.build(op), trans_b=not found.trans_b)
            return found.build(op)

        return Match([node.outputs[0]], build)


class FusedMatMulTranspose(Rule):
    """``Transpose(MatMul(a, b)) -> FusedMatMul(b, a, transA=1, transB=1)``   on the last axes."""

    roots = ("Transpose",)
    reads = ("MatMul", _FUSED)
    lowers = "transposes"

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        turned = _turned(node.outputs[0], graph)
        if turned is None or not turned.is_plain:
            return None
        product = _read_alone(turned.x, graph)
        if not isinstance(product, _Product):
            return product
        a, b = product.a, product.b
        other = _Product(b, a, not product.trans_b, not product.trans_a, product.alpha)
        return _fuse(node.outputs[0], other, graph)


class FusedMatMulScale(Rule):
    """``MatMul(a * s, b) -> FusedMatMul(a, b, alpha=s)``   also for ``b``, the result, and ``/``.

    ``s`` is a number, and the type is no wider than the attribute, which is float32.
    """

    roots = ("MatMul", _FUSED, "Mul", "Div")
    reads = ("MatMul", _FUSED, "Mul", "Div")
    lowers = "scalings around products"

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        if node.op_type in ("Mul", "Div"):
            return self._after(node, graph)
        found = [_scaled(graph.producer(v), graph) for v in node.inputs]
        if not any(found):
            return None
        product = _read(node, graph)
        if not isinstance(product, _Product):
            return product
        a, b = found
        if a is not None:
            product = replace(product, a=a[0], alpha=product.alpha * a[1])
        if b is not None:
            product = replace(product, b=b[0], alpha=product.alpha * b[1])
        return _fuse(node.outputs[0], product, graph)

    def _after(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        found = _scaled(node, graph)
        if found is None:
            return None
        value, number = found
        product = _read_alone(value, graph)
        if not isinstance(product, _Product):
            return product
        product = replace(product, alpha=product.alpha * number)
        return _fuse(node.outputs[0], product, graph)


def _scaled(node: ir.Node | None, graph: GraphView) -> tuple[ir.Value, float] | None:
    """x and s of a node that is ``x * s``, of a type the kernel scales."""
    found = scaled(node, graph)
    return found if found is not None and found[0].dtype in _NARROW else None
