"""Indices that torch refuses and ONNX takes: those below zero, which count from the end there.

NOTE: onnxruntime checks that an index is inside when it reads or writes there, so that a wrong one
only has to be moved out of every tensor. What the user gets to see is torch's error: a run that
fails is done again there.
"""

from __future__ import annotations

import numpy as np

from dort_rewriter.export.recorder import Recorder
from dort_rewriter.graph.values import Value

__all__ = ["OUTSIDE", "refuse_negative"]

OUTSIDE = 2**31 - 1
"""A place along an axis that no tensor has."""

_NATURAL = frozenset({"ArgMax", "ArgMin", "NonZero", "Shape", "TopK"})
"""Operators whose last results are integers not below zero."""


def refuse_negative(op: Recorder, index: Value) -> Value:
    """Indices, those below zero moved outside."""
    known = index.const_value
    if known is not None and (np.asarray(known.numpy()) >= 0).all():
        return index
    producer = index.producer()
    if producer is not None and producer.op_type in _NATURAL and index is producer.outputs[-1]:
        return index
    return op.Where(op.Less(index, 0), op.constant(OUTSIDE, index.dtype), index)
