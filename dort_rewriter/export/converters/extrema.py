"""The larger and the smaller of two numbers: NaN wins, or loses.

NOTE: of zeros of different signs torch's kernels return the second in whole vectors, the first in
the end of a row. ONNX leaves it open, and no model follows torch there.
"""

from __future__ import annotations

import onnx_ir as ir

from dort_rewriter.export.converters.opmath import HALVES, is_bool, is_float, store, widen
from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import converter
from dort_rewriter.graph.values import Value

__all__ = ["maximum", "minimum"]


@converter("aten::maximum")
def maximum(op: Recorder, x: Value, other: Value) -> Value:
    """maximum(Tensor self, Tensor other) -> Tensor"""
    if x.dtype == ir.DataType.INT64:  # ORT's Max of 1 and 2**31 is 1
        return op.Where(op.Less(x, other), other, x)
    if is_bool(x):
        return op.Or(x, other)
    return store(op, op.Max(widen(op, x), widen(op, other)))  # ORT 1.19 loses float16's NaN


@converter("aten::minimum")
def minimum(op: Recorder, x: Value, other: Value) -> Value:
    """minimum(Tensor self, Tensor other) -> Tensor"""
    if x.dtype == ir.DataType.INT64:  # as Max
        return op.Where(op.Less(other, x), other, x)
    if is_bool(x):
        return op.And(x, other)
    return store(op, op.Min(widen(op, x), widen(op, other)))  # as Max


@converter("aten::fmax")
def fmax(op: Recorder, x: Value, other: Value) -> Value:
    """fmax(Tensor self, Tensor other) -> Tensor"""
    if not is_float(x):
        return maximum(op, x, other)
    return _known(op, "Greater", x, other)


@converter("aten::fmin")
def fmin(op: Recorder, x: Value, other: Value) -> Value:
    """fmin(Tensor self, Tensor other) -> Tensor"""
    if not is_float(x):
        return minimum(op, x, other)
    return _known(op, "Less", x, other)


def _known(op: Recorder, beyond: str, x: Value, other: Value) -> Value:
    """The larger or the smaller of two, of which NaN is none; of 16 bits the second of zeros."""
    beyond = f"{beyond}OrEqual" if op.dtype in HALVES else beyond
    x, other = widen(op, x), widen(op, other)
    return store(op, op.Where(op.Or(op.call(beyond, other, x), op.IsNaN(x)), other, x))
