"""Scaled dot product attention: ``softmax(q @ k.T * scale + bias) @ v``."""

from __future__ import annotations

from dataclasses import dataclass, replace

import onnx_ir as ir

from dort_rewriter.optimize.patterns.base import Refusal
from dort_rewriter.optimize.patterns.recognize.arithmetic import factors, scaled
from dort_rewriter.optimize.view import GraphView

__all__ = ["Attention", "Located", "find_attention", "locate_attention"]

_FUSED = "com.microsoft::FusedMatMul"


@dataclass(frozen=True)
class Attention:
    """An attention over four-dimensional inputs: batch, heads, positions, size of a head."""

    q: ir.Value
    k: ir.Value
    v: ir.Value
    scale: float
    bias: ir.Value | None
    scores: ir.Value
    """What the softmax reads."""
    result: ir.Value


@dataclass(frozen=True)
class Located:
    """An attention that nobody looks into, and what one node can stand for."""

    attention: Attention
    result: ir.Value
    is_masked: bool
    """Whether the result is that of a Where which gives zero for rows without any key."""


def locate_attention(node: ir.Node, graph: GraphView) -> Located | Refusal | None:
    """Find the attention that ends at a product, or at the Where behind it.

    Refuse one the scores of which others read.
    """
    is_masked = node.op_type == "Where"
    product, scores = node, None
    if is_masked:
        scores = masked_scores(node, graph)
        inner = graph.producer(node.inputs[2], "MatMul", _FUSED)
        if scores is None or inner is None:
            return None
        product = inner
    found = find_attention(product, graph)
    if not isinstance(found, Attention):
        return found
    if is_masked:
        if found.scores is not scores or found.bias is None:
            return None
        others = len(graph.consumers(scores)) > 2 or scores.is_graph_output()
        if others or not graph.used_once(found.result):
            return Refusal("others read the scores", scores.name)
        return Located(found, node.outputs[0], True)
    if mask_of(graph.consumers(found.result), graph) is not None:
        return None  # left to its Where
    if not graph.used_once(found.scores):
        return Refusal("others read the scores", found.scores.name)
    return Located(found, found.result, False)


def find_attention(product: ir.Node, graph: GraphView) -> Attention | Refusal | None:
    """Whether a product is that of the probabilities and the values.

    Refuse one the inside of which others read, as training graphs do.
    """
    if graph.attribute(product, "transA", 0) or graph.attribute(product, "transB", 0):
        return None
    if graph.attribute(product, "alpha", 1.0) != 1:
        return None
    probabilities, v = product.inputs
    softmax = graph.producer(probabilities, "Softmax")
    if softmax is None or probabilities is None or v is None:
        return None
    scores = softmax.inputs[0]
    last = -1 if graph.rank(probabilities) is None else 3
    if scores is None or graph.attribute(softmax, "axis", -1) not in (-1, last):
        return None
    if not graph.used_once(probabilities):
        return Refusal("others read the probabilities", probabilities.name)
    found = _scores(scores, graph)
    if found is None or isinstance(found, Refusal):
        return found
    return replace(found, v=v, result=product.outputs[0])


def masked_scores(where: ir.Node, graph: GraphView) -> ir.Value | None:
    """The scores, of a Where that gives zero where their largest is minus infinity."""
    equal = graph.producer(where.inputs[0], "Equal")
    if equal is None or graph.scalar(where.inputs[1]) != 0:
        return None
    highest = graph.producer(equal.inputs[0], "ReduceMax")
    if highest is None or graph.scalar(equal.inputs[1]) != -float("inf"):
        return None
    last = graph.axes(highest, graph.rank(highest.inputs[0])) == [3]
    return highest.inputs[0] if last and graph.attribute(highest, "keepdims", 1) else None


def mask_of(readers: list[ir.Node], graph: GraphView) -> ir.Node | None:
    """The Where among the readers of a result that hides rows without any key."""
    wheres = (node for node in readers if node.op_type == "Where")
    return next((node for node in wheres if masked_scores(node, graph) is not None), None)


def _scores(scores: ir.Value, graph: GraphView) -> Attention | Refusal | None:
    total = graph.producer(scores, "Add")
    if total is None:
        return _product(scores, scores, None, graph)
    for value, bias in factors(total):
        found = _product(value, scores, bias, graph)
        if found is not None:
            if not graph.used_once(value):
                return Refusal("others read the scores", value.name)
            return found
    return None


def _product(
    value: ir.Value, scores: ir.Value, bias: ir.Value | None, graph: GraphView
) -> Attention | None:
    """The product of queries and keys, scaled before, between or after."""
    value, after = _unscaled(value, graph)
    node = graph.producer(value, "MatMul", _FUSED)
    if node is None or None in node.inputs or graph.attribute(node, "transA", 0):
        return None
    q, before = _unscaled(node.inputs[0], graph)
    k, between = _unscaled(node.inputs[1], graph)
    if not graph.attribute(node, "transB", 0):
        turned = graph.producer(k, "Transpose")
        if turned is None or list(graph.attribute(turned, "perm", [])) != [0, 1, 3, 2]:
            return None
        k, inside = _unscaled(turned.inputs[0], graph)
        between *= inside
    alpha = float(graph.attribute(node, "alpha", 1.0))
    scale = after * alpha * before * between
    return Attention(q, k, k, scale, bias, scores, scores)


def _unscaled(value: ir.Value | None, graph: GraphView) -> tuple[ir.Value, float]:
    """x and s of a value that is ``x * s``, s a number; the value and 1 of any other."""
    assert value is not None
    return scaled(graph.producer(value), graph) or (value, 1.0)
