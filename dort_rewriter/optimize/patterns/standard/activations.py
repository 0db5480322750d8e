"""Activations that newer opsets have as one operator."""

from __future__ import annotations

import functools

import onnx_ir as ir

from dort_rewriter.graph.writer import Writer
from dort_rewriter.optimize.patterns.base import Match, Refusal, Rule
from dort_rewriter.optimize.patterns.recognize import gelu
from dort_rewriter.optimize.patterns.recognize.arithmetic import factors, scaled
from dort_rewriter.optimize.view import GraphView

__all__ = ["Gelu", "SwiGLU", "Swish"]


class Gelu(Rule):
    """``x * (1 + gate) / 2 -> Gelu(x)``   when the opset has it, 20 or more.

    The gate is ``Erf(x / sqrt(2))``, or ``Tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))``.
    """

    roots = ("Erf", "Tanh")

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        """What to replace."""
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
        """What to replace."""
        gate, argument = node.outputs[0], node.inputs[0]
        readers = graph.consumers(gate)
        if graph.opset < 24 or argument is None:
            return None
        x, alpha = scaled(graph.producer(argument), graph) or (argument, 1.0)
        products = [r for r in readers if r.op_type == "Mul" and not r.domain]
        found = next((p for p in products if _other(p, gate) in (x, argument)), None)
        if found is None:
            return None
        if not graph.used_once(gate):
            return Refusal("others read the gate", gate.name)
        if _other(found, gate) is argument:
            x, alpha = argument, 1.0
        if not graph.runs("Swish", [x], domain=""):
            return Refusal("no kernel for the type", x.dtype)
        return Match([found.outputs[0]], lambda op: op.Swish(x, alpha=alpha))


def _other(product: ir.Node, factor: ir.Value) -> ir.Value | None:
    """What a value is multiplied by."""
    return next((b for a, b in factors(product) if a is factor), None)


class SwiGLU(Rule):
    """``Swish(a) * b -> SwiGLU(a, b)``   when the opset has it, 28 or more."""

    roots = ("Mul",)
    reads = ("Swish",)

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        """What to replace."""
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
    result: ir.Value = op.SwiGLU(a, b, alpha=alpha)
    return result
