"""Casts between float32 and the types of 16 bits."""

from __future__ import annotations

import onnx_ir as ir

from dort_rewriter.optimize.view import GraphView

__all__ = ["NARROW", "after_cast", "before_cast", "before_rounding"]

NARROW = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
"""The types of 16 bits that are computed in float32."""


def before_cast(value: ir.Value | None, graph: GraphView) -> ir.Value | None:
    """What a value was before it was cast from a 16-bit type to float32, else the value."""
    cast = graph.producer(value, "Cast")
    if cast is None or value is None or value.dtype != ir.DataType.FLOAT:
        return value
    source = cast.inputs[0]
    return source if source is not None and source.dtype in NARROW else value


def before_rounding(value: ir.Value, graph: GraphView) -> ir.Value:
    """What a value was before it was cast from float32 to a 16-bit type, else the value."""
    cast = graph.producer(value, "Cast")
    source = None if cast is None or value.dtype not in NARROW else cast.inputs[0]
    return value if source is None or source.dtype != ir.DataType.FLOAT else source


def after_cast(value: ir.Value, graph: GraphView) -> ir.Value:
    """What a value of float32 is cast to, if that is a 16-bit type and all that reads it."""
    if value.dtype != ir.DataType.FLOAT or not graph.used_once(value):
        return value
    (reader,) = graph.consumers(value)
    narrow = reader.op_type == "Cast" and reader.outputs[0].dtype in NARROW
    return reader.outputs[0] if narrow and not reader.domain else value
