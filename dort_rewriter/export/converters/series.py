"""What the special functions are made of: polynomials, computed in float64.

Their formulas are right to 10 or 11 digits, so a result is rounded once, to float32 or less. A
result in float64 would have fewer digits than torch's: it stays in torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
import torch

from dort_rewriter.export.recorder import Recorder
from dort_rewriter.graph.values import Value

__all__ = ["cosine", "horner", "is_narrow", "to_double"]


def is_narrow(node: torch.fx.Node) -> bool:
    """its formula is right to float32, not to float64: it stays in torch"""
    value = node.meta["val"]
    value = value[0] if isinstance(value, list | tuple) else value
    assert isinstance(value, torch.Tensor)
    return value.dtype is not torch.float64


def to_double(op: Recorder, x: Any) -> Value:
    """A tensor or a number in float64."""
    return op.cast(x, ir.DataType.DOUBLE)


def horner(op: Recorder, u: Value, coefficients: Sequence[float]) -> Value:
    """The polynomial in `u` with these coefficients, in rising powers."""
    result: Any = coefficients[-1]
    for coefficient in reversed(coefficients[:-1]):
        result = op.Add(op.Mul(u, result), coefficient)
    return result


def cosine(op: Recorder, x: Value) -> Value:
    """The cosine: onnxruntime 1.19 has no kernel for it in float64."""
    return op.Sin(op.Add(x, math.pi / 2))
