"""Attention that is written out node by node, its causal masks, and heads repeated for groups."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from dort_rewriter.graph.shapes import same
from dort_rewriter.graph.writer import Writer, hides_all
from dort_rewriter.optimize.patterns.base import Refusal
from dort_rewriter.optimize.patterns.recognize.operands import factors, scaled
from dort_rewriter.optimize.view import GraphView

_LIMIT = 1 << 22
"""Elements above which a constant is not looked at."""
_MASKED = -1e30
"""What is lower makes any probability of float32 zero: the smallest number stands for -inf too."""


def is_causal(bias: ir.Value | None, graph: GraphView) -> bool:
    """Whether a bias of scores is zero for all positions up to the own one, and masks others.

    For all batches and heads alike, as many queries as keys. Such a mask hides no row completely.
    """
    dims = graph.static(bias)
    if bias is None or dims is None or len(dims) < 2 or not dims[-1] == dims[-2] > 1:
        return False
    seen = _seen(bias, graph)
    return seen is not None and bool(np.all(seen == np.tri(dims[-1], dtype=np.bool_)))


def _seen(bias: ir.Value, graph: GraphView) -> np.ndarray[Any, Any] | None:
    """Where a bias is zero, if it masks everywhere else."""
    where = graph.producer(bias, "Where")
    if where is not None:
        condition, first, second = where.inputs
        chosen = graph.constant(condition, _LIMIT)
        numbers = graph.scalar(first), graph.scalar(second)
        if chosen is None or None in numbers:
            return None
        if numbers[0] == 0 and numbers[1] < _MASKED:
            return chosen
        return ~chosen if numbers[1] == 0 and numbers[0] < _MASKED else None
    upper = graph.producer(bias, "Trilu")
    if upper is not None:
        return _seen_below(upper, graph)
    array = graph.constant(bias, _LIMIT)
    if array is None:
        return None
    seen: np.ndarray[Any, Any] = array == 0
    return seen if np.all(seen | (array < _MASKED)) else None


def _seen_below(upper: ir.Node, graph: GraphView) -> np.ndarray[Any, Any] | None:
    """Where the upper part of a matrix of one number is zero, if that number masks."""
    filled = graph.producer(upper.inputs[0], "ConstantOfShape")
    dims = graph.static(upper.outputs[0])
    if filled is None or dims is None or graph.attribute(upper, "upper", 1) != 1:
        return None
    number = graph.attribute(filled, "value")
    first = graph.scalar(upper.inputs[1]) if len(upper.inputs) > 1 else 0
    if number is None or first is None or np.prod(dims) > _LIMIT:
        return None
    if not number.numpy().item() < _MASKED:
        return None
    return np.tri(dims[-2], dims[-1], int(first) - 1, dtype=np.bool_)


def _find_repeated_heads(value: ir.Value, graph: GraphView) -> ir.Value | None:
    """x of ``Reshape(Expand(x))``, five axes ``batch, heads, 1, positions, size``."""
    merge = graph.producer(value, "Reshape")
    expand = None if merge is None else graph.producer(merge.inputs[0], "Expand")
    if expand is None or (source := expand.inputs[0]) is None:
        return None
    single, many, whole = (graph.dims(v) for v in (source, expand.outputs[0], value))
    if single is None or many is None or whole is None:
        return None
    if (len(single), len(many), len(whole)) != (5, 5, 4):
        return None
    heads, groups = single[1], many[2]
    if not (isinstance(heads, int) and isinstance(groups, int)):
        return None
    batch, positions, size = single[0], single[3], single[4]
    expected = (
        (batch, heads, 1, positions, size),
        (batch, heads, groups, positions, size),
        (batch, heads * groups, positions, size),
    )
    fits = all(
        all(map(same, wanted, dims))
        for wanted, dims in zip(expected, (single, many, whole), strict=True)
    )
    return source if fits else None


def shared_heads(values: Sequence[ir.Value], graph: GraphView) -> list[ir.Value] | None:
    """Keys and values before their heads are repeated, alike for both, if they are."""
    found = [_find_repeated_heads(value, graph) for value in values]
    sources = [source for source in found if source is not None]
    if len(sources) < len(values):
        return None
    heads = {(graph.dims(source) or (None, None))[1] for source in sources}
    return sources if len(heads) == 1 else None


def without_repeats(op: Writer, source: ir.Value, graph: GraphView) -> ir.Value:
    """Heads of five axes as four: without the third, along which they are to be repeated."""
    before = graph.producer(source, "Unsqueeze")
    if before is not None and graph.axes(before, 5) == [2] and before.inputs[0] is not None:
        return before.inputs[0]
    return op.Squeeze(source, [2])


def is_for_all_heads(mask: ir.Value, graph: GraphView) -> bool:
    """Whether a mask or bias of one query is the same for each head."""
    dims = graph.dims(mask)
    return dims is not None and len(dims) <= 4 and all(size == 1 for size in dims[-3:-1])


_FUSED = "com.microsoft::FusedMatMul"


@dataclass(frozen=True)
class Located:
    """An attention over four-dimensional inputs: batch, heads, positions, size of a head."""

    q: ir.Value
    k: ir.Value
    v: ir.Value
    scale: float
    bias: ir.Value | None
    result: ir.Value
    is_masked: bool = False
    """Whether the probabilities are zero in rows without any key; it has a bias then."""


def locate_attention(product: ir.Node, graph: GraphView) -> Located | Refusal | None:
    """Find the attention that ends at a product of the probabilities and the values.

    Refuse one the inside of which others read, as training graphs do.
    """
    if graph.attribute(product, "transA", 0) or graph.attribute(product, "transB", 0):
        return None
    if graph.attribute(product, "alpha", 1.0) != 1:
        return None
    probabilities, v = product.inputs
    where = graph.producer(probabilities, "Where")
    hidden = None if where is None else _hidden_rows(where, graph)
    softmax = graph.producer(probabilities if where is None else where.inputs[2], "Softmax")
    if softmax is None or probabilities is None or v is None:
        return None
    scores = softmax.inputs[0]
    last = -1 if graph.rank(probabilities) is None else 3
    if scores is None or graph.attribute(softmax, "axis", -1) not in (-1, last):
        return None
    if where is not None and hidden is not scores:
        return None
    if not (graph.used_once(probabilities) and graph.used_once(softmax.outputs[0])):
        return Refusal("others read the probabilities", probabilities.name)
    found = _scores(scores, graph)
    if found is None or isinstance(found, Refusal):
        return found
    readers = 1 if where is None else 3
    if len(graph.consumers(scores)) > readers or scores.is_graph_output():
        return Refusal("others read the scores", scores.name)
    if where is not None and found.bias is None:
        return None
    return replace(found, v=v, result=product.outputs[0], is_masked=where is not None)


def _hidden_rows(where: ir.Node, graph: GraphView) -> ir.Value | None:
    """The scores, of a Where that gives zero where they hide all keys."""
    both = graph.producer(where.inputs[0], "And")
    if both is None or graph.scalar(where.inputs[1]) != 0:
        return None
    found = [_lowest(value, name, graph) for value in both.inputs for name in _OF_ROWS]
    read = [value for value in found if value is not None]
    return read[0] if len(read) == 2 and read[0] is read[1] else None


_OF_ROWS = ("ReduceMax", "ReduceSum")


def _lowest(value: ir.Value | None, name: str, graph: GraphView) -> ir.Value | None:
    """x of ``Equal(reduction(x), -inf)``, of the last of four axes."""
    equal = graph.producer(value, "Equal")
    if equal is None or graph.scalar(equal.inputs[1]) != -math.inf:
        return None
    reduction = graph.producer(equal.inputs[0], name)
    if reduction is None or not graph.attribute(reduction, "keepdims", 1):
        return None
    scores = reduction.inputs[0]
    return scores if graph.axes(reduction, graph.rank(scores)) == [3] else None


def without_hidden_rows(op: Writer, bias: ir.Value) -> tuple[ir.Value, ir.Value]:
    """A bias that hides no row completely, and which rows it hid: a kernel may give anything for
    these."""
    is_hidden = hides_all(op, bias)
    return op.Where(is_hidden, 0.0, bias), is_hidden


def hide(op: Writer, is_hidden: ir.Value, result: ir.Value) -> ir.Value:
    """Zeros in rows that are hidden; NaN in place of what is not finite there, as of its product
    with zero."""
    return op.Where(is_hidden, op.Sub(result, result), result)


def _scores(scores: ir.Value, graph: GraphView) -> Located | Refusal | None:
    total = graph.producer(scores, "Add")
    if total is None:
        return _product(scores, None, graph)
    for value, bias in factors(total):
        found = _product(value, bias, graph)
        if found is not None:
            if not graph.used_once(value):
                return Refusal("others read the scores", value.name)
            return found
    return None


def _product(value: ir.Value, bias: ir.Value | None, graph: GraphView) -> Located | None:
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
    return Located(q, k, k, scale, bias, value)


def _unscaled(value: ir.Value | None, graph: GraphView) -> tuple[ir.Value, float]:
    """x and s of a value that is ``x * s``, s a number; the value and 1 of any other."""
    assert value is not None
    return scaled(graph.producer(value), graph) or (value, 1.0)
