"""Layers that are written out, as one operator: activations, softmax, norms and losses.

NOTE: the forward of a cross entropy stays what torch decomposes it into, a LogSoftmax and a
gather: SoftmaxCrossEntropyLoss takes 1.6 to 5 times as long in onnxruntime.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import onnx_ir as ir

from dort_rewriter.graph.writer import Writer
from dort_rewriter.kernels.operators import OWN_DOMAIN
from dort_rewriter.optimize.patterns.base import Match, Refusal, Rule
from dort_rewriter.optimize.patterns.recognize import gelu
from dort_rewriter.optimize.patterns.recognize.linear_attention import (
    LinearStep,
    find_linear_step,
)
from dort_rewriter.optimize.patterns.recognize.norms import RmsNorm, find_rms_norm
from dort_rewriter.optimize.patterns.recognize.operands import (
    beside,
    factors,
    filling,
    only_axis,
    scaled,
)
from dort_rewriter.optimize.patterns.trees import PatternOps, Tree, TreeRule
from dort_rewriter.optimize.view import GraphView, same_sizes


class Gelu(Rule):
    """``x * (1 + gate) / 2 -> Gelu(x)``   when the opset has it, 20 or more.

    The gate is ``Erf(x / sqrt(2))``, or ``Tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))``.
    """

    roots = ("Erf", "Tanh")

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        found = gelu.find_gelu(node, graph)
        if not isinstance(found, gelu.Gelu):
            return found
        if graph.opset < 20:
            return Refusal("the opset has no Gelu", graph.opset)
        x = found.x
        if not graph.runs("Gelu", [x], domain=""):
            return Refusal("no kernel for the type", x.dtype)
        return Match([found.result], lambda op: op.Gelu(x, approximate=found.approximate))


class Swish(Rule):
    """``x * Sigmoid(alpha * x) -> Swish(x)``   when the opset has it, 24 or more."""

    roots = ("Sigmoid",)

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        gate, argument = node.outputs[0], node.inputs[0]
        readers = graph.consumers(gate)
        if graph.opset < 24 or argument is None:
            return None
        x, alpha = scaled(graph.producer(argument), graph) or (argument, 1.0)
        products = [r for r in readers if r.op_type == "Mul" and not r.domain]
        found = next((p for p in products if beside(p, gate) in (x, argument)), None)
        if found is None:
            return None
        if not graph.used_once(gate):
            return Refusal("others read the gate", gate.name)
        if beside(found, gate) is argument:
            x, alpha = argument, 1.0
        if not graph.runs("Swish", [x], domain=""):
            return Refusal("no kernel for the type", x.dtype)
        return Match([found.outputs[0]], lambda op: op.Swish(x, alpha=alpha))


class SwiGLU(Rule):
    """``Swish(a) * b -> SwiGLU(a, b)``   when the opset has it, 28 or more."""

    roots = ("Mul",)
    reads = ("Swish",)

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        if graph.opset < 28:
            return None
        for gate, b in factors(node):
            swish = graph.producer(gate, "Swish")
            if swish is None or (a := swish.inputs[0]) is None:
                continue
            if not graph.used_once(gate):
                return Refusal("others read the gate", gate.name)
            if not graph.same_shape(a, b):
                return Refusal("the inputs differ in shape", str(graph.dims(b)))
            if not graph.runs("SwiGLU", [a, b], domain=""):
                return Refusal("no kernel for the type", a.dtype)
            alpha = graph.attribute(swish, "alpha", 1.0)
            return Match(node.outputs, functools.partial(_swiglu, a, b, alpha))
        return None


def _swiglu(a: ir.Value, b: ir.Value, alpha: float, op: Writer) -> ir.Value:
    return op.SwiGLU(a, b, alpha=alpha)


class LinearAttention(Rule):
    """``S = exp(g) * P + k (x) (beta * (v - k . exp(g) * P))``, ``q . S`` ->
    ``LinearAttention(q, k, v, P, g, beta)``   when the opset has it, 27 or more.

    Without ``g``, and without ``beta`` and what it multiplies, they are ONNX's other rules.
    """

    roots = ("ReduceSum",)
    reads = ("Mul",)

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        if graph.opset < 27:
            return None
        found = find_linear_step(node, graph)
        if found is None:
            return None
        given = (found.query, found.key, found.value, found.past, found.decay, found.beta)
        attributes = _attributes(found)
        if not graph.runs("LinearAttention", given, domain="", outputs=2, **attributes):
            return Refusal("no kernel for the types", found.query.dtype)
        return Match([found.result, found.state], functools.partial(_linear_attention, found))


def _attributes(step: LinearStep) -> dict[str, Any]:
    heads = step.sizes[0]
    numbers = {"q_num_heads": heads, "kv_num_heads": heads}
    return {**numbers, "scale": 1.0, "update_rule": step.rule}


def _linear_attention(step: LinearStep, op: Writer) -> tuple[ir.Value, ir.Value]:
    """Write a step as the attention of one token, whose heads lie beside each other."""
    heads, wide, deep = step.sizes

    def packed(value: ir.Value | None, size: int) -> ir.Value | None:
        return None if value is None else op.Reshape(value, [0, 1, heads * size])

    in_decay = 1 if step.decay is None or step.decay_rank == 2 else wide
    result, state = op.LinearAttention(
        packed(step.query, wide),
        packed(step.key, wide),
        packed(step.value, deep),
        step.past,
        packed(step.decay, in_decay),
        packed(step.beta, 1),
        **_attributes(step),
        outputs=2,
    )
    return op.Reshape(result, [0, heads, deep]), state


class Softmax(TreeRule):
    """``e / ReduceSum(e) -> Softmax(x)``   when ``e`` is ``Exp(x - ReduceMax(x))``, over one
    axis."""

    @staticmethod
    def pattern(op: PatternOps, x: ir.Value) -> Tree:
        highest = op.named("highest", op.ReduceMax(x, ...))
        e = op.named("shared", op.Exp(op.Sub(x, highest)))
        return op.Div(e, op.named("total", op.ReduceSum(e, ...)))

    @staticmethod
    def check(
        graph: GraphView, x: ir.Value, highest: ir.Node, shared: ir.Node, total: ir.Node
    ) -> Refusal | bool | None:
        return _check("Softmax", graph, x, highest, shared, total)

    @staticmethod
    def replacement(op: Writer, x: ir.Value, total: ir.Node) -> ir.Value:
        return op.Softmax(x, axis=only_axis(total, x))


class LogSoftmax(TreeRule):
    """``c - Log(ReduceSum(Exp(c))) -> LogSoftmax(x)``   when ``c`` is ``x - ReduceMax(x)``, over
    one axis."""

    @staticmethod
    def pattern(op: PatternOps, x: ir.Value) -> Tree:
        c = op.named("shared", op.Sub(x, op.named("highest", op.ReduceMax(x, ...))))
        return op.Sub(c, op.Log(op.named("total", op.ReduceSum(op.Exp(c), ...))))

    @staticmethod
    def check(
        graph: GraphView, x: ir.Value, highest: ir.Node, shared: ir.Node, total: ir.Node
    ) -> Refusal | bool | None:
        """The same; the kernel of float64 loses a NaN of its row."""
        if x.dtype == ir.DataType.DOUBLE:
            return False
        return _check("LogSoftmax", graph, x, highest, shared, total)

    @staticmethod
    def replacement(op: Writer, x: ir.Value, total: ir.Node) -> ir.Value:
        return op.LogSoftmax(x, axis=only_axis(total, x))


def _check(
    name: str, graph: GraphView, x: ir.Value, highest: ir.Node, shared: ir.Node, total: ir.Node
) -> Refusal | bool | None:
    """Why a softmax is left as it is; ``shared`` is what it reads twice."""
    if graph.rank(x) is None:
        return False
    axes = [graph.axes(reduction, graph.rank(x)) for reduction in (total, highest)]
    if axes[0] is None or len(axes[0]) != 1 or axes[0] != axes[1]:
        return Refusal("not over one axis", str(axes))
    if not all(graph.attribute(reduction, "keepdims", 1) for reduction in (total, highest)):
        return False
    inside = shared.outputs[0]
    if inside.is_graph_output() or len(graph.consumers(inside)) > 2:
        return Refusal("others read what is inside", inside.name)
    if not graph.runs(name, [x], domain=""):
        return Refusal("no kernel for the type", x.dtype)
    return None


class RMSNormalization(Rule):
    """``Mul(weight, x * rstd) -> RMSNormalization(x, weight)``   from opset 23.

    ``rstd = 1 / sqrt(mean(x * x) + epsilon)`` over the last axis. NOTE: the operator has no second
    result: where a training graph saves ``rstd``, the rule of onnxruntime finds the norm. It
    computes in float32, too little for float64.
    """

    roots = ("Mul",)
    reads = ("Mul", "Div", "Cast")

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        if graph.opset < 23:
            return None
        norm = find_rms_norm(node, graph)
        if not isinstance(norm, RmsNorm):
            return norm
        x, weight = norm.x, norm.weight
        if len(norm.replaces) > 1:
            return Refusal("others read the deviation", norm.replaces[1].name)
        if x.dtype == ir.DataType.DOUBLE:
            return Refusal("it would be computed in float32", x.dtype)
        if not graph.runs("RMSNormalization", [x, weight], domain=""):
            return Refusal("no kernel for the type", x.dtype)
        epsilon = norm.epsilon
        return Match(
            norm.replaces, lambda op: op.RMSNormalization(x, weight, axis=-1, epsilon=epsilon)
        )


_LIMIT = 4096
"""Elements above which a constant is not looked at."""


class _LogSoftmaxGrad(NamedTuple):
    """``gradient - exp(output) * sum(gradient)`` over one axis."""

    gradient: ir.Value
    output: ir.Value
    axis: int


class CrossEntropyScatter(Rule):
    """``h - exp(y) * sum(h) -> ScatterElements(exp(y) * -g, target, g, "add")``   when ``h`` is
    ``ScatterElements(0, target, g)``: the gradient of one class taken of a LogSoftmax.

    The sum over the classes is ``g``, the same bits: nothing but zeros is added to it. A gradient
    that the exporter wrote with a kernel of ours becomes one kernel in its set instead. Where our
    kernel computes a group of nodes in one pass, zeros are of torch's signs: ``0 - exp(y) * g``,
    and ``g - exp(y) * (g + 0)`` written to the class; a sum of zeros of either sign is 0.0.
    """

    lowers = "sums over classes"
    roots = ("Sub",)
    reads = ("Mul",)

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        found = _of_parts(node, graph)
        if found is None:
            return None
        scatter = graph.producer(found.gradient, "ScatterElements")
        return None if scatter is None else _rewrite(node, found, scatter, graph)


def _of_parts(node: ir.Node, graph: GraphView) -> _LogSoftmaxGrad | None:
    gradient, product = node.inputs[0], graph.producer(node.inputs[1], "Mul")
    if gradient is None or product is None:
        return None
    for probabilities, total in factors(product):
        exponential = graph.producer(probabilities, "Exp")
        reduction = graph.producer(total, "ReduceSum")
        if exponential is None or reduction is None or reduction.inputs[0] is not gradient:
            continue
        output = exponential.inputs[0]
        axes = graph.axes(reduction, graph.rank(output))
        if output is None or axes is None or len(axes) != 1:
            return None
        if not graph.attribute(reduction, "keepdims", 1):
            return None
        return _LogSoftmaxGrad(gradient, output, axes[0])
    return None


def _rewrite(
    node: ir.Node, found: _LogSoftmaxGrad, scatter: ir.Node, graph: GraphView
) -> Match | Refusal:
    output, axis, (zeros, target, updates) = found.output, found.axis, scatter.inputs
    filled = filling(zeros, graph, _LIMIT)
    if filled != 0 or graph.attribute(scatter, "reduction", "none") != "none":
        return Refusal("written into something else than zeros", filled)
    dims, indices = graph.dims(output), graph.dims(target)
    if target is None or dims is None or indices is None:
        return Refusal("an unknown shape", scatter.name)
    if graph.attribute(scatter, "axis", 0) % len(dims) != axis:
        return Refusal("another axis than that of the sum", axis)
    if not all(graph.same_shape(output, v) for v in (found.gradient, node.outputs[0])):
        return Refusal("the gradient has another shape", str(dims))
    wanted = (*dims[:axis], 1, *dims[axis + 1 :])
    if not same_sizes(indices, wanted):
        return Refusal("not one class of each sample", str(indices))
    if updates is None or not graph.same_shape(updates, target):
        return Refusal("the gradient is not one for each sample", graph.dims(updates))
    gradient = found.gradient
    if gradient.is_graph_output() or len(graph.consumers(gradient)) > 2:
        return Refusal("others read the gradient", gradient.name)
    example = [[3 if i == axis else 2 for i in range(len(dims))]]
    example += [[1 if i == axis else 2 for i in range(len(dims))]] * 2
    runs = graph.runs(
        "ScatterElements",
        [output, target, output],
        domain="",
        shapes=example,
        axis=axis,
        reduction="add",
    )
    if not runs:
        return Refusal("no kernel for the type", output.dtype)
    made = node.outputs
    exponential: dict[str, Any] = {"program": [12, 0, -1, 0, 0], "results": [0]}
    is_fused = graph.runs("Elementwise", [output], outputs=made, domain=OWN_DOMAIN, **exponential)

    def build(op: Writer) -> ir.Value:
        if not is_fused:
            scaled = op.Mul(op.Exp(output), op.Neg(updates))
            return op.ScatterElements(scaled, target, updates, axis=axis, reduction="add")
        zero = op.constant(0, output.dtype)
        scaled = op.Sub(zero, op.Mul(op.Exp(output), updates))
        picked = op.Exp(op.GatherElements(output, target, axis=axis))
        chosen = op.Sub(updates, op.Mul(picked, op.Add(updates, zero)))
        return op.ScatterElements(scaled, target, chosen, axis=axis)

    return Match([node.outputs[0]], build)
