"""Activations, norms and a gradient that onnxruntime has as one kernel, and does not find.

NOTE: of 1.19, SoftmaxGrad takes nine tenths to three quarters of the time of its parts on the CPU.
GeluGrad and LayerNormalizationGrad are faster for some sizes and slower for others: not used.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from dort_rewriter.graph.writer import Writer
from dort_rewriter.optimize.patterns.base import Match, Refusal, Rule
from dort_rewriter.optimize.patterns.recognize.gelu import Gelu, find_gelu
from dort_rewriter.optimize.patterns.recognize.norms import RmsNorm, find_rms_norm
from dort_rewriter.optimize.patterns.recognize.operands import only_axis
from dort_rewriter.optimize.patterns.trees import PatternOps, Tree, TreeRule
from dort_rewriter.optimize.view import GraphView


def _match(node: ir.Node, operator: str, graph: GraphView) -> Match | Refusal | None:
    found = find_gelu(node, graph)
    if not isinstance(found, Gelu):
        return found
    x, result = found.x, found.result
    if operator == "FastGelu" and x.shape is not None and len(x.shape) == 0:
        return Refusal("the kernel wants a dimension", x.name)
    if operator == "FastGelu" and x.dtype == ir.DataType.DOUBLE:
        return Refusal("the kernel has constants of float32", x.name)
    if not graph.runs(operator, [x]):
        return Refusal("no kernel for the type", x.dtype)
    return Match([result], lambda op: op.call(operator, x, domain="com.microsoft"))


class GeluErf(Rule):
    """``x * (1 + Erf(x / sqrt(2))) / 2 -> Gelu(x)``   when nothing else reads the Erf."""

    roots = ("Erf",)

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        return _match(node, "Gelu", graph)


class FastGelu(Rule):
    """``x * (1 + Tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))) / 2 -> FastGelu(x)``."""

    roots = ("Tanh",)

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        return _match(node, "FastGelu", graph)


class SimplifiedLayerNormalization(Rule):
    """``Mul(weight, x * rstd) -> SimplifiedLayerNormalization(x, weight)``.

    ``rstd = 1 / sqrt(mean(x * x) + epsilon)`` over the last axis; it is the second result where a
    training graph saves it; its reciprocal where ``x`` is divided. NOTE: the operator is
    onnxruntime's, in the domain of ONNX.
    """

    roots = ("Mul",)
    reads = ("Mul", "Div", "Cast")

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        norm = find_rms_norm(node, graph)
        if not isinstance(norm, RmsNorm):
            return norm
        outputs = len(norm.replaces)
        inputs = [norm.x, norm.weight]
        if not graph.runs(
            "SimplifiedLayerNormalization", inputs, domain="", outputs=norm.replaces
        ):
            return Refusal("no kernel for the type", norm.x.dtype)

        def build(op: Writer) -> Sequence[ir.Value]:
            results = op.call(
                "SimplifiedLayerNormalization",
                *inputs,
                axis=-1,
                epsilon=norm.epsilon,
                outputs=outputs,
            )
            if not isinstance(results, tuple):
                return [results]
            y, rstd = results
            return [y, op.Reciprocal(rstd) if norm.is_divided else rstd]

        return Match(norm.replaces, build)


class SkipSimplifiedLayerNormalization(Rule):
    """``SimplifiedLayerNormalization(a + b, w) -> SkipSimplifiedLayerNormalization(a, b, w)``.

    The sum is another result where others read it. Only where the kernel is no slower than its
    parts, which :func:`kernel_query` knows: that of 1.19 on the CPU.
    """

    roots = ("SimplifiedLayerNormalization",)

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        total = node.inputs[0]
        addition = graph.producer(total, "Add")
        if total is None or addition is None or graph.attribute(node, "axis", -1) != -1:
            return None
        a, b = addition.inputs
        if not (graph.same_shape(a, total) and graph.same_shape(b, total)):
            return Refusal("one of the two is repeated", str(total.shape))
        if graph.rank(total) != 3 or total.dtype != ir.DataType.FLOAT:
            return Refusal("not three axes of float32", str(total.shape))
        if any(v.uses() or v.is_graph_output() for v in node.outputs[1:]):
            return Refusal("others read the deviation", node.name)
        inputs = [a, b, node.inputs[1]]
        is_needed = not graph.used_once(total)
        outputs = 4 if is_needed else 1
        if not graph.runs("SkipSimplifiedLayerNormalization", inputs, outputs=outputs):
            return Refusal("no kernel that is no slower", total.dtype)
        epsilon = graph.attribute(node, "epsilon", 1e-5)

        def build(op: Writer) -> Sequence[ir.Value]:
            results = op.call(
                "SkipSimplifiedLayerNormalization",
                *inputs,
                domain="com.microsoft",
                outputs=outputs,
                epsilon=epsilon,
            )
            return [results[0], results[3]] if is_needed else [results]

        replaces = [node.outputs[0], total] if is_needed else [node.outputs[0]]
        return Match(replaces, build)


class SoftmaxGrad(TreeRule):
    """``(g - ReduceSum(g * y)) * y -> SoftmaxGrad_13(g, y)``   over one axis."""

    @staticmethod
    def pattern(op: PatternOps, gradient: ir.Value, y: ir.Value) -> Tree:
        product = op.named("product", op.Mul(gradient, y))
        return op.Mul(op.Sub(gradient, op.named("total", op.ReduceSum(product, ...))), y)

    @staticmethod
    def check(
        graph: GraphView, gradient: ir.Value, y: ir.Value, total: ir.Node, product: ir.Node
    ) -> Refusal | bool | None:
        axes = graph.axes(total, graph.rank(y))
        if axes is None or len(axes) != 1 or not graph.attribute(total, "keepdims", 1):
            return Refusal("not over one axis", axes)
        if not graph.same_shape(gradient, y):
            return Refusal("the gradient has another shape", str(gradient.shape))
        if not graph.used_once(product.outputs[0]):
            return Refusal("others read the product", product.outputs[0].name)
        if not graph.runs("SoftmaxGrad_13", [gradient, y]):
            return Refusal("no kernel for the type", y.dtype)
        return None

    @staticmethod
    def replacement(op: Writer, gradient: ir.Value, y: ir.Value, total: ir.Node) -> ir.Value:
        axis = only_axis(total, y)
        return op.call("SoftmaxGrad_13", gradient, y, domain="com.microsoft", axis=axis)
