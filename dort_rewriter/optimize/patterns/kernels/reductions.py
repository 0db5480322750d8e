"""Reductions by kernels of our own: sums, the norms and losses that are made of them, and updates
that are added up in a tensor of zeros: the gradient of an embedding or of an index.

Our kernel adds up the first or last axes in vectors. 16-bit numbers are added up in float32 and
rounded once, as torch's are; also over axes in between, of which onnxruntime's kernel knows
float32 only.
"""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import onnx_ir as ir

from dort_rewriter.graph.shapes import same
from dort_rewriter.graph.writer import Writer
from dort_rewriter.kernels.operators import OWN_DOMAIN, OWN_MOST_AXES, own_roots
from dort_rewriter.optimize.patterns.base import Match, Refusal, Rule
from dort_rewriter.optimize.patterns.recognize.operands import (
    NARROW,
    beside,
    factors,
    filling,
    reads_or_makes_narrow,
)
from dort_rewriter.optimize.view import GraphView

_TYPES = frozenset({ir.DataType.FLOAT, *NARROW})


class Sums(Rule):
    """``ReduceSum(x) -> Sum(x)``   over leading and trailing axes of float32, float16 or bfloat16,
    ReduceMean and ReduceSumSquare; of 16-bit numbers over other axes side by side too.
    ``ReduceL2(x) -> Sqrt(Sum(x))`` of squares, of float32.

    NOTE: late, since norms are recognized by their means.
    """

    roots = ("ReduceSum", "ReduceMean", "ReduceSumSquare", "ReduceL2")
    lowers = "reductions of onnxruntime"
    late = True

    def match(self, node: ir.Node, graph: GraphView) -> Match | None:
        if (ends := _reduced_ends(node, graph)) is None:
            return None
        attributes = {
            **ends,
            "keepdims": graph.attribute(node, "keepdims", 1),
            "mean": int(node.op_type == "ReduceMean"),
        }
        if node.op_type in ("ReduceSumSquare", "ReduceL2"):
            attributes["square"] = 1
        x, is_norm = node.inputs[0], node.op_type == "ReduceL2"
        if is_norm and (x is None or x.dtype != ir.DataType.FLOAT):
            return None  # the sum would be rounded before its root is

        def write(op: Writer) -> ir.Value:
            total = op.call("Sum", x, domain=OWN_DOMAIN, **attributes)
            return op.Sqrt(total) if is_norm else total

        return Match([node.outputs[0]], write)


def _reduced_ends(node: ir.Node, graph: GraphView) -> dict[str, int] | None:
    """How many axes are reduced at each end, when none is between, or else which."""
    x = node.inputs[0]
    dims = graph.dims(x)
    if x is None or not dims or x.dtype not in _TYPES or 0 in dims:
        return None
    rank = len(dims)
    axes = graph.axes(node, rank)
    if axes is None or (not axes and graph.attribute(node, "noop_with_empty_axes", 0)):
        return None
    reduced = set(axes or range(rank))
    leading = next((i for i in range(rank) if i not in reduced), rank)
    trailing = next((i for i in range(rank - leading) if rank - 1 - i not in reduced), 0)
    ends = {"leading": leading, "trailing": trailing}
    if len(reduced) != leading + trailing:
        first = min(reduced)
        if x.dtype not in NARROW or max(reduced) - first >= len(reduced):
            return None
        ends = {"before": first, "leading": len(reduced)}
    return ends if graph.runs("Sum", [x], outputs=[x], domain=OWN_DOMAIN) else None


class RmsNormGrad(Rule):
    """``(a + h * r) + x * (sum(h * x) * (-1 / n) * r ** 3) -> a + RmsNormGrad(g, x, r, w)``
    with h = g * w, r one number for each row of n; a may be missing."""

    roots = ("ReduceSum",)

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        found = list(factors(graph.producer(node.inputs[0], "Mul")))
        curve = _curve(node.outputs[0], graph)
        if not found or curve is None:
            return None
        scale, root, x, total = curve
        scaled = next((h for h, value in found if value is x), None)
        dims = graph.dims(x) or (None,)
        width, last_axis = dims[-1], [len(dims) - 1]
        if (
            scaled is None
            or not isinstance(width, int)
            or not graph.attribute(node, "keepdims", 1)
        ):
            return None
        if graph.axes(node, len(dims)) != last_axis:
            return Refusal("the sum is not along the last axis", graph.axes(node, len(dims)))
        if np.float32(scale) != np.float32(-1 / width):
            return Refusal("the factor is not minus one by the number of elements", scale)
        straight = [
            m
            for m in graph.consumers(scaled)
            if m.op_type == "Mul" and set(m.inputs) == {scaled, root} and not m.domain
        ]
        if len(straight) != 1 or not graph.used_once(straight[0].outputs[0]):
            return None
        ends = _ends(straight[0].outputs[0], total, graph)
        if ends is None:
            return Refusal("the two parts are not added", scaled.name)
        weights = [
            (g, w)
            for g, w in factors(graph.producer(scaled, "Mul"))
            if graph.static(w) == (width,)
        ]
        if not weights:
            return Refusal("there is no weight", scaled.name)
        g, w = weights[0]
        rows = graph.dims(root) or ()
        each = len(rows) == len(dims) and all(map(same, rows, (*dims[:-1], 1)))
        if not each or not graph.same_shape(g, x):
            return Refusal("there is not one root for each row", rows)
        if not graph.runs("RmsNormGrad", [g, x, root, w], outputs=[x], domain=OWN_DOMAIN):
            return Refusal("no kernel", x.dtype)
        last, kept = ends

        def build(op: Any) -> list[ir.Value]:
            result = op.call("RmsNormGrad", g, x, root, w, domain=OWN_DOMAIN)
            result.type, result.shape = x.type, x.shape
            return [result if kept is None else op.Add(kept, result)]

        return Match([last], build)


def _curve(total: ir.Value, graph: GraphView) -> tuple[float, ir.Value, ir.Value, ir.Value] | None:
    """The constant, r, x and the product of ``total * constant * r ** 3 * x``."""
    value, scale = total, None
    root: ir.Value | None = None
    while (product := graph.reader(value, "Mul")) is not None:
        factor = beside(product, value)
        if factor is None:
            return None
        value = product.outputs[0]
        if (number := graph.scalar(factor)) is not None and scale is None:
            scale = float(number)
        elif (cubed := _root_of_cube(factor, graph)) is not None and root is None:
            root = cubed
        elif scale is not None and root is not None:
            return scale, root, factor, value
        else:
            return None
    return None


def _root_of_cube(value: ir.Value, graph: GraphView) -> ir.Value | None:
    for root, square in factors(graph.producer(value, "Mul")):
        if any(a is root and b is root for a, b in factors(graph.producer(square, "Mul"))):
            return root
    return None


def _ends(
    straight: ir.Value, curve: ir.Value, graph: GraphView
) -> tuple[ir.Value, ir.Value | None] | None:
    """The sum of the two parts, and what else is in it."""
    for first, second in permutations((straight, curve)):
        inner = graph.reader(first, "Add")
        if inner is None:
            continue
        other = beside(inner, first)
        if other is second:
            return inner.outputs[0], None
        outer = graph.reader(second, "Add")
        whole = outer is not None and beside(outer, second) is inner.outputs[0]
        if outer is not None and whole and other is not None:
            return (outer.outputs[0], other) if graph.used_once(inner.outputs[0]) else None
    return None


class BatchNormInference(Rule):
    """``BatchNormalization -> BatchNormInference``   of 16-bit types, between casts of them, or
    with a sum or a Relu behind it.

    Constants stay: a convolution takes them into its weights, or onnxruntime computes in the
    layout of its convolutions.
    """

    roots = ("BatchNormalization",)
    lowers = "batch normalizations of onnxruntime"
    late = True  # convolutions take them before

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        x, *parameters = node.inputs
        y, *statistics = node.outputs
        if statistics or graph.attribute(node, "training_mode", 0):
            return None
        is_narrow = reads_or_makes_narrow(node, graph)
        if all(graph.constant(p) is not None for p in parameters) and (
            not is_narrow or graph.producer(x, "Conv", "FusedConv", "ConvTranspose")
        ):
            return Refusal("a convolution takes it", node.name)
        if not is_narrow and graph.reader(y, "Add", "Relu") is None:
            return Refusal("onnxruntime is as fast", node.name)
        how = {"epsilon": graph.attribute(node, "epsilon", 1e-5)}
        if not graph.runs(
            "BatchNormInference", node.inputs, outputs=[y], domain=OWN_DOMAIN, **how
        ):
            return Refusal("no kernel", [v and v.dtype for v in node.inputs])
        name, read = "BatchNormInference", node.inputs
        return Match([y], lambda op: op.call(name, *read, domain=OWN_DOMAIN, **how))


class ReluBatchNormGrad(Rule):
    """``BatchNormGrad(Where(y <= 0, 0, g), x, ...) -> BatchNormGrad(g, x, ..., y)``   of the Relu
    behind a batch normalization, whose result is y."""

    roots = own_roots(("BatchNormGrad",))
    lowers = "gradients of a Relu"

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        gradient, *others = node.inputs
        chosen = graph.producer(gradient, "Where")
        compared = None if chosen is None else graph.producer(chosen.inputs[0], "LessOrEqual")
        if chosen is None or compared is None or len(others) != 4:
            return None
        (_, instead, given), (result, limit) = chosen.inputs, compared.inputs
        if graph.scalar(instead) != 0 or graph.scalar(limit) != 0:
            return Refusal("it is no Relu", [graph.scalar(v) for v in (instead, limit)])
        if not graph.used_once(chosen.outputs[0]):
            return Refusal("others read the gradient", chosen.name)
        if not graph.same_shape(result, others[0]) or not graph.same_shape(given, others[0]):
            return Refusal("the result has another shape", graph.dims(result))
        read = [given, *others, result]
        how = {name: a.value for name, a in node.attributes.items()}
        if not graph.runs(
            "BatchNormGrad", read, outputs=list(node.outputs), domain=OWN_DOMAIN, **how
        ):
            return Refusal("no kernel", [v and v.dtype for v in read])
        return Match(list(node.outputs), lambda op: op.again(node, *read))


class CrossEntropyGrad(Rule):
    """``SoftmaxGrad<log>(ScatterElements(0, i, g), y) -> CrossEntropyGrad(y, i, -g)``   along the
    last axis, g one number for each row."""

    roots = (f"{OWN_DOMAIN}::SoftmaxGrad",)

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        gradient, y = node.inputs
        scatter = graph.producer(gradient, "ScatterElements")
        if scatter is None or not graph.attribute(node, "log", 0):
            return None
        chosen = scatter.outputs[0]
        zeros, indices, updates = scatter.inputs
        if filling(zeros, graph) != 0:
            return None
        if not graph.used_once(chosen) or not _is_last(scatter, graph):
            return Refusal("the chosen places are of another axis, or read elsewhere", chosen.name)
        dims, rows = graph.dims(y), graph.dims(indices)
        if not graph.same_shape(chosen, y) or dims is None or rows is None or rows[-1:] != (1,):
            return Refusal("more than one place is chosen in a row", rows)
        if not graph.same_shape(updates, indices):
            return Refusal("the gradient is not one for each row", graph.dims(updates))
        if len(rows) != len(dims) or not all(map(same, rows[:-1], dims[:-1])):
            return Refusal("places are chosen in some rows only", rows)
        read = (y, indices, updates)
        if not graph.runs("CrossEntropyGrad", read, outputs=node.outputs, domain=OWN_DOMAIN):
            return Refusal("no kernel", None if indices is None else indices.dtype)
        return Match(
            [node.outputs[0]],
            lambda op: op.call("CrossEntropyGrad", y, indices, op.Neg(updates), domain=OWN_DOMAIN),
        )


def _is_last(scatter: ir.Node, graph: GraphView) -> bool:
    rank = graph.rank(scatter.inputs[0]) or 0
    last = graph.attribute(scatter, "axis", 0) in (-1, rank - 1)
    return last and graph.attribute(scatter, "reduction", "none") == "none"


class ConstantOfShapeScatterND(Rule):
    """``ScatterND(ConstantOfShape(shape), i, u) -> ScatterZeros(shape, i, u)``   of zeros, when
    updates are added or replace."""

    roots = ("ScatterND",)

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        zeros, indices, updates = node.inputs
        constant = graph.producer(zeros, "ConstantOfShape")
        if constant is None or zeros is None or updates is None or not graph.used_once(zeros):
            return None
        shape = constant.inputs[0]
        value = graph.attribute(constant, "value")
        if value is not None and value.numpy().any():
            return Refusal("the constant is not zero", value.numpy().ravel()[0])
        reduction = graph.attribute(node, "reduction", "none")
        if reduction not in ("none", "add"):
            return Refusal("the updates are neither added nor written", reduction)
        if (graph.rank(node.outputs[0]) or 0) > OWN_MOST_AXES:
            return Refusal("the result has too many axes", graph.rank(node.outputs[0]))
        read = (shape, indices, updates)
        how: dict[str, Any] = {"domain": OWN_DOMAIN, "add": int(reduction == "add")}
        if not graph.runs("ScatterZeros", read, **how):
            return Refusal("no kernel", updates.dtype)

        def build(op: Any) -> Any:
            result = op.call("ScatterZeros", *read, **how)
            result.type = updates.type
            return result

        return Match([node.outputs[0]], build)
