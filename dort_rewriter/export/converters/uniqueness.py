"""Runs of equal elements."""

from __future__ import annotations

import onnx_ir as ir
import torch

from dort_rewriter.export.converters.axes import flatten
from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import Refused, converter
from dort_rewriter.graph.values import Value

_COMPARED = (ir.DataType.INT8, ir.DataType.INT16, ir.DataType.UINT8, ir.DataType.UINT16)
"""Element types that ONNX Runtime compares as int32 only."""


def _holds_few(dtype: torch.dtype) -> bool:
    """Tell whether a type does not hold indices."""
    return dtype not in (torch.int32, torch.int64)


@converter("aten::unique_consecutive")
def unique_consecutive(
    op: Recorder,
    x: Value,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> tuple[Value, Value, Value]:
    """unique_consecutive(Tensor self, bool return_inverse=False, bool return_counts=False, int? dim=None) -> (Tensor, Tensor, Tensor)"""
    if dim is not None and x.rank > 1:
        raise Refused("runs of equal slices (dim=...) have no converter")
    if (return_inverse or return_counts) and _holds_few(op.result[1].dtype):
        # Up to torch 2.8 it is the type of the elements, whatever they are.
        raise Refused(f"torch declares its indices as {op.result[1].dtype}")
    flat = flatten(op, x)
    compared = op.Cast(flat, to=ir.DataType.INT32) if x.dtype in _COMPARED else flat
    # A NaN equals nothing, itself included: it is a run of its own, as in torch.
    after = op.Slice(compared, [1], [2**62], [0])
    before = op.Slice(compared, [0], [-1], [0])
    others = op.Not(op.Equal(after, before))
    count = op.Shape(flat)
    starts = op.Slice(op.Concat(op.constant([True]), others, axis=0), [0], count, [0])
    nothing = op.constant([], ir.DataType.INT64)
    inverse, counts = nothing, nothing
    if return_inverse:
        numbers = op.CumSum(op.Cast(starts, to=ir.DataType.INT64), 0)
        inverse = op.Reshape(op.Sub(numbers, 1), op.Shape(x))
    if return_counts:
        places = op.Reshape(op.NonZero(starts), [-1])
        ends = op.Slice(op.Concat(places, count, axis=0), [1], [2**62], [0])
        # Nothing has no runs, but an end.
        counts = op.Sub(op.Slice(ends, [0], op.Shape(places), [0]), places)
    return op.Compress(flat, starts, axis=0), inverse, counts
