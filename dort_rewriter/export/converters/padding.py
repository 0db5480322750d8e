"""Padding with a constant; a negative amount crops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import converter
from dort_rewriter.graph.values import Value


@converter("aten::constant_pad_nd")
def constant_pad_nd(op: Recorder, x: Value, pad: Sequence[Any], value: Any = 0) -> Value:
    """constant_pad_nd(Tensor self, SymInt[] pad, Scalar value=0) -> Tensor"""
    if not pad:
        return x
    first = x.rank - len(pad) // 2
    begins, ends = list(pad[::2])[::-1], list(pad[1::2])[::-1]
    pads = op.vector([*[0] * first, *begins, *[0] * first, *ends])
    filler = op.cast(value, op.dtype) if isinstance(value, Value) else value
    if x.dtype == ir.DataType.BOOL:  # onnxruntime 1.19 has no kernel for it
        wide = op.cast(x, ir.DataType.INT32)
        return op.cast(op.Pad(wide, pads, op.cast(filler, ir.DataType.INT32)), ir.DataType.BOOL)
    return op.Pad(x, pads, filler)
