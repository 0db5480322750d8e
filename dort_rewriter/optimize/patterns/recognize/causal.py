"""Masks that are known to let each position see those before it and itself, and no other."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from dort_rewriter.optimize.view import GraphView

__all__ = ["is_causal"]

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
        chosen = _small_constant(condition, graph)
        numbers = graph.scalar(first), graph.scalar(second)
        if chosen is None or None in numbers:
            return None
        if numbers[0] == 0 and numbers[1] < _MASKED:
            return chosen
        return ~chosen if numbers[1] == 0 and numbers[0] < _MASKED else None
    upper = graph.producer(bias, "Trilu")
    if upper is not None:
        return _seen_below(upper, graph)
    array = _small_constant(bias, graph)
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


def _small_constant(value: ir.Value | None, graph: GraphView) -> np.ndarray[Any, Any] | None:
    if value is None or value.const_value is None or value.const_value.size > _LIMIT:
        return None
    return graph.constant(value)
