"""Batch normalization in inference, as part of what is elementwise around it."""

from __future__ import annotations

import math
from typing import Any

import onnx_ir as ir

from dort_rewriter.optimize.patterns.base import Match, Refusal, Rule
from dort_rewriter.optimize.patterns.kernels.programs import has_kernel, is_instruction
from dort_rewriter.optimize.view import GraphView

__all__ = ["BatchNormProduct"]

_FEWEST = 1 << 15
"""Elements from which the nodes that compute the factors take less than a pass over them."""


class BatchNormProduct(Rule):
    """``BatchNormalization(x, w, b, mean, variance) -> x * f + (b - mean * f)``
    with f = w / sqrt(variance + epsilon), where x or the result meets elementwise nodes.

    torch computes the same. Where a convolution can take the normalization into its weights, it
    stays.
    """

    roots = ("BatchNormalization",)
    lowers = "batch normalizations"

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        """What to replace."""
        x, *parameters = node.inputs
        y, *statistics = node.outputs
        if statistics or graph.attribute(node, "training_mode", 0):
            return None
        constant = all(graph.constant(p) is not None for p in parameters)
        if constant and graph.producer(x, "Conv", "FusedConv", "ConvTranspose"):
            return Refusal("a convolution takes it", node.name)
        around = [x.producer() if x is not None else None, *graph.consumers(y)]
        if not any(n is not None and is_instruction(n) for n in around):
            return Refusal("nothing around it is elementwise", node.name)
        dims = graph.static(x)
        if dims is None or len(dims) < 2 or math.prod(dims) < _FEWEST:
            return Refusal("it is small, or of unknown sizes", graph.dims(x))
        types = {v.dtype for v in node.inputs if v is not None}
        if len(types) > 1 or not has_kernel(y, graph):
            return Refusal("no kernel", types)
        scale, bias, mean, variance = parameters
        epsilon = graph.attribute(node, "epsilon", 1e-5)

        def build(op: Any) -> list[ir.Value]:
            shifted = op.Add(variance, op.constant(epsilon, y.dtype))
            factor = op.Mul(scale, op.Reciprocal(op.Sqrt(shifted)))
            rest = op.Sub(bias, op.Mul(mean, factor))
            if len(dims) > 2:
                column = op.constant([dims[1], *[1] * (len(dims) - 2)], ir.DataType.INT64)
                factor, rest = op.Reshape(factor, column), op.Reshape(rest, column)
            return [op.Add(op.Mul(x, factor), rest)]

        return Match([y], build)
