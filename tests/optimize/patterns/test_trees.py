"""Rules that are written as two expressions."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import pytest

from dort_rewriter import optimize_onnx
from dort_rewriter.graph.writer import Writer
from dort_rewriter.optimize.patterns.base import Refusal
from dort_rewriter.optimize.patterns.trees import PatternOps, Tree, TreeRule
from dort_rewriter.optimize.view import GraphView
from tests.optimize.rewrites import assert_refuses, assert_rewrites


class Factored(TreeRule):
    """``x * y + x * z -> x * (y + z)``"""

    @staticmethod
    def pattern(op: PatternOps, x: Any, y: Any, z: Any) -> Tree:
        return op.Add(op.alone(op.Mul(x, y)), op.alone(op.Mul(x, z)))

    @staticmethod
    def replacement(op: Writer, x: Any, y: Any, z: Any) -> ir.Value:
        result: ir.Value = op.Mul(x, op.Add(y, z))
        return result


@pytest.mark.parametrize("products", ["Mul(a, b)", "Mul(b, a)"])
@pytest.mark.parametrize("other", ["Mul(a, c)", "Mul(c, a)"])
def test_inputs_of_commutative_operators_in_either_order(products: str, other: str) -> None:
    head = "(float[N] a, float[N] b, float[N] c) => (float[N] y)"
    assert_rewrites(
        Factored,
        f"{head} {{p = {products} q = {other} y = Add(p, q)}}",
        f"{head} {{s = Add(b, c) y = Mul(a, s)}}",
    )


def test_a_leaf_is_one_value() -> None:
    head = "(float[N] a, float[N] b, float[N] c, float[N] d) => (float[N] y)"
    assert_refuses(Factored, f"{head} {{p = Mul(a, b) q = Mul(c, d) y = Add(p, q)}}")


def test_what_others_read() -> None:
    text = "(float[N] a, float[N] b, float[N] c) => (float[N] y, float[N] p)"
    assert_refuses(
        Factored,
        f"{text} {{p = Mul(a, b) q = Mul(a, c) y = Add(p, q)}}",
        "others read what is inside",
    )


def test_the_driver_shows_a_rule_what_reads_its_tree() -> None:
    assert Factored.roots == ("Add",)
    assert Factored.reads == ("Mul",)
    model = ir.from_onnx_text(
        '<ir_version: 8, opset_import: ["": 18]> g (float[2] x) => (float[2] y) {y = Add(x, x)}'
    )
    from dort_rewriter.backends.optimize_onnx import optimize_model
    from dort_rewriter.options import OptimizationOptions

    report = optimize_model(model, OptimizationOptions(patterns=[Factored]))
    assert report.rules["Factored"].tried == 0


class Halved(TreeRule):
    """``Sqrt(x * c) -> Sqrt(x)`` for a number c, with words for what is left."""

    @staticmethod
    def pattern(op: PatternOps, x: Any, c: float) -> Tree:
        return op.Sqrt(op.named("product", op.Mul(x, c)))

    @staticmethod
    def check(graph: GraphView, c: float, product: ir.Node) -> Refusal | bool | None:
        assert product.op_type == "Mul"
        if c == 3:
            return False
        return Refusal("another number than 1 or 3", c) if c != 1 else None

    @staticmethod
    def replacement(op: Writer, x: Any) -> ir.Value:
        result: ir.Value = op.Sqrt(x)
        return result


def _root(number: float) -> str:
    return f"(float[N] x) => (float[N] y) <float c = {{{number}.0}}> {{p = Mul(c, x) y = Sqrt(p)}}"


def test_numbers_and_conditions() -> None:
    import numpy as np

    positive = {"x": np.array([1.0, 4.0, 9.0], dtype=np.float32)}
    after = "(float[N] x) => (float[N] y) {y = Sqrt(x)}"
    assert_rewrites(Halved, _root(1), after, inputs=positive)
    assert_refuses(Halved, _root(3))
    assert_refuses(Halved, _root(2), "another number than 1 or 3")
    computed = "(float[N] x, float c) => (float[N] y) {p = Mul(c, x) y = Sqrt(p)}"
    assert_refuses(Halved, computed)


class Shared(TreeRule):
    """``e / ReduceSum(e, ...) -> Softmax(x)`` over axis -1 as it is written: one node twice."""

    @staticmethod
    def pattern(op: PatternOps, x: Any) -> Tree:
        e = op.Exp(x)
        return op.Div(e, op.ReduceSum(e, ..., keepdims=1))

    @staticmethod
    def replacement(op: Writer, x: Any) -> ir.Value:
        result: ir.Value = op.Softmax(x, axis=-1)
        return result


@pytest.mark.parametrize(
    ("keep", "second", "rewritten"),
    [(1, "e", True), (0, "e", False), (1, "f", False)],
)
def test_a_node_that_stands_twice_is_one_node(keep: int, second: str, rewritten: bool) -> None:
    shape = "float[2,3]" if keep else "float[3,3]"
    other = "f = Exp(z) " if second == "f" else ""
    before = (
        f"({shape} x, {shape} z) => ({shape} y) <int64[1] a = {{1}}> {{e = Exp(x) {other}"
        f"s = ReduceSum<keepdims={keep}>({second}, a) y = Div(e, s) }}"
    )
    if rewritten:
        after = f"({shape} x, {shape} z) => ({shape} y) {{y = Softmax<axis=-1>(x)}}"
        assert_rewrites(Shared, before, after, rtol=1e-4)
    else:
        assert_refuses(Shared, before)


def test_a_rule_of_a_user() -> None:
    """What the guide shows."""
    import torch

    from dort_rewriter import to_onnx

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x * y + x * 3

    exported = to_onnx(Model(), (torch.randn(3), torch.randn(3)), options={"patterns": None})
    optimized = optimize_onnx(exported, {"patterns": [Factored]})
    assert [n.op_type for n in optimized.graph.node] == ["Add", "Mul"]
