"""Normalizations over the last axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from dort_rewriter.graph.shapes import same
from dort_rewriter.optimize.patterns.base import Refusal
from dort_rewriter.optimize.patterns.recognize.operands import factors
from dort_rewriter.optimize.view import GraphView


@dataclass(frozen=True)
class RootMeanSquare:
    """``x * rstd``, with ``rstd = 1 / sqrt(mean(x * x) + epsilon)`` over the last axis."""

    x: ir.Value
    rstd: ir.Value | None
    """None where x is divided by the root."""
    epsilon: float
    root: ir.Value
    """What ``rstd`` is the reciprocal of."""

    def needed(self, standard: ir.Value, graph: GraphView) -> ir.Value | None:
        """``rstd``, or the root where there is none, when it is read after the reader of
        the product, ``standard``, is gone."""
        scale = self.root if self.rstd is None else self.rstd
        return None if graph.used_once(scale) and graph.used_once(standard) else scale


@dataclass(frozen=True)
class RmsNorm:
    """``weight * x * rstd`` over the last axis, and what it replaces."""

    x: ir.Value
    weight: ir.Value
    epsilon: float
    replaces: Sequence[ir.Value]
    """The result; ``rstd`` too where others read it, as in training graphs."""
    is_divided: bool
    """Whether what others read is the root, the reciprocal of ``rstd``."""


def find_rms_norm(node: ir.Node, graph: GraphView) -> RmsNorm | Refusal | None:
    """Whether a Mul is that of an RMS norm with its weight."""
    for weight, standard in factors(node):
        narrowed = graph.producer(standard, "Cast")
        value = standard if narrowed is None else narrowed.inputs[0]
        found = find_root_mean_square(value, graph)
        if isinstance(found, RootMeanSquare):
            return _with_weight(node, weight, standard, found, graph)
        if found is not None:
            return found
    return None


def _with_weight(
    node: ir.Node, weight: ir.Value, standard: ir.Value, norm: RootMeanSquare, graph: GraphView
) -> RmsNorm | Refusal:
    x = norm.x
    if x.dtype != standard.dtype:  # half computed in float, as the kernel does by itself
        widened = graph.producer(x, "Cast")
        x = x if widened is None or widened.inputs[0] is None else widened.inputs[0]
    if not x.dtype == weight.dtype == node.outputs[0].dtype:
        return Refusal("the weight has another type", f"{x.dtype}, {weight.dtype}")
    width, size = graph.dims(x), graph.dims(weight)
    if width is None or size is None or len(size) != 1 or not same(width[-1], size[0]):
        return Refusal("the weight is no vector over the last axis", size)
    if width[-1] == 0:
        return Refusal("kernels of norms take no empty rows", size)
    replaces = [node.outputs[0]]
    if (scale := norm.needed(standard, graph)) is not None:
        replaces.append(scale)
    return RmsNorm(x, weight, norm.epsilon, replaces, norm.rstd is None)


def find_root_mean_square(
    value: ir.Value | None, graph: GraphView
) -> RootMeanSquare | Refusal | None:
    """Whether a value is ``x * rstd``; refuse one over other axes, or of another epsilon."""
    node = graph.producer(value, "Mul", "Div")
    if node is None:
        return None
    if node.op_type == "Div":
        x, root = node.inputs
        return None if x is None else _measure(x, None, graph.producer(root, "Sqrt"), graph)
    for x, rstd in factors(node):
        found = _measure(x, rstd, _root(rstd, graph), graph)
        if found is not None:
            return found
    return None


def _root(rstd: ir.Value, graph: GraphView) -> ir.Node | None:
    """The Sqrt that a value is the reciprocal of."""
    node = graph.producer(rstd, "Reciprocal", "Div")
    if node is None:
        return None
    if node.op_type == "Div" and graph.scalar(node.inputs[0]) != 1:
        return None
    return graph.producer(node.inputs[-1], "Sqrt")


def _measure(
    x: ir.Value, rstd: ir.Value | None, root: ir.Node | None, graph: GraphView
) -> RootMeanSquare | Refusal | None:
    total = None if root is None else graph.producer(root.inputs[0], "Add")
    if total is None or root is None:
        return None
    for mean, epsilon in factors(total):
        reduction = graph.producer(mean, "ReduceMean")
        if reduction is None or not _is_square(reduction.inputs[0], x, graph):
            continue
        rank = graph.rank(x)
        axes = graph.axes(reduction, rank)
        if rank is None or axes != [rank - 1] or not graph.attribute(reduction, "keepdims", 1):
            return Refusal("another axis than the last", axes)
        number = graph.scalar(epsilon)
        if number is None:
            return Refusal("epsilon is computed at run time", epsilon.name)
        return RootMeanSquare(x, rstd, float(number), root.outputs[0])
    return None


def _is_square(value: ir.Value | None, x: ir.Value, graph: GraphView) -> bool:
    node = graph.producer(value, "Mul", "Pow")
    if node is None or node.inputs[0] is not x:
        return False
    return node.inputs[1] is x if node.op_type == "Mul" else graph.scalar(node.inputs[1]) == 2
