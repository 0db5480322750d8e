"""Signs of floating-point numbers, of zeros too.

NOTE: ORT's Where makes 0.0 of each -0.0: what may be one is made by a product.
"""

from __future__ import annotations

import onnx_ir as ir

from dort_rewriter.graph.values import Value
from dort_rewriter.graph.writer import Writer

__all__ = ["is_negative", "signed_one"]


def is_negative(op: Writer, x: ir.Value) -> Value:
    """Tell where the sign bit is set, minus zero included (the sign of a NaN is out of reach)."""
    return op.Less(op.Min(x, op.Reciprocal(x)), 0)


def signed_one(op: Writer, x: ir.Value) -> Value:
    """1 with the sign of each number."""
    assert x.dtype is not None
    return op.Where(is_negative(op, x), op.cast(-1, x.dtype), 1)
