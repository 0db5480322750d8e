"""Tensors that hold one number only."""

from __future__ import annotations

import onnx_ir as ir

from dort_rewriter.optimize.view import GraphView

__all__ = ["filling"]


def filling(value: ir.Value | None, graph: GraphView, limit: int | None = None) -> float | None:
    """The number that all elements of a value are; None when that is not known.

    Constants of more than ``limit`` elements are not looked at.
    """
    if (expand := graph.producer(value, "Expand")) is not None:
        value = expand.inputs[0]
    if (shaped := graph.producer(value, "ConstantOfShape")) is not None:
        held = graph.attribute(shaped, "value")
        return 0.0 if held is None else float(held.numpy().ravel()[0])
    if value is None or value.const_value is None:
        return None
    if limit is not None and value.const_value.size > limit:
        return None
    array = graph.constant(value)
    if array is None or not array.size or not (array == array.ravel()[0]).all():
        return None
    return float(array.ravel()[0])
