"""Signs of floating-point numbers, of zeros too.

NOTE: ORT's Where makes 0.0 of each -0.0: what may be one is made by a product.
"""

from __future__ import annotations

from dort_rewriter.export.converters.opmath import cast_like
from dort_rewriter.export.recorder import Recorder
from dort_rewriter.graph.values import Value

__all__ = ["is_negative", "signed_one"]


def is_negative(op: Recorder, x: Value) -> Value:
    """Tell where the sign bit is set, minus zero included (the sign of a NaN is out of reach)."""
    return op.Less(op.Min(x, op.Reciprocal(x)), 0)


def signed_one(op: Recorder, x: Value) -> Value:
    """1 with the sign of each number."""
    return op.Where(is_negative(op, x), cast_like(op, -1, x), 1)
