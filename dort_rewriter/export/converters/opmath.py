"""The precision torch computes in: float32 for 16-bit numbers, whatever it stores.

The special functions are made of polynomials, computed in float64. Their formulas are right to 10
or 11 digits, so a result is rounded once, to float32 or less. A result in float64 would have fewer
digits than torch's: it stays in torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import Refused, converter
from dort_rewriter.graph.values import Value

Formula = Callable[..., Value]

HALVES = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})


def widen(op: Recorder, value: Any) -> Any:
    """A 16-bit floating-point result as float32, anything else as it is.

    For converters of several nodes: torch rounds once, at the end.
    """
    if isinstance(value, Value) and value.dtype in HALVES:
        return op.cast(value, ir.DataType.FLOAT)
    return value


def widen_beside(op: Recorder, value: Any, number: Any) -> Any:
    """A 16-bit factor or dividend as float32, where the number beside it is none of its type.

    NOTE: torch rounds numbers to the type of the tensor, except those it multiplies and divides
    by; the result is rounded. ``export/interpreter.py`` does the same for what is known at run time.
    """
    if not isinstance(number, int | float) or isinstance(number, bool):
        return value
    if not isinstance(value, Value) or value.dtype not in HALVES:
        return value
    as_stored = rounded(number, value.dtype)
    return value if as_stored == number or number != number else widen(op, value)


def rounded(number: float, dtype: ir.DataType) -> float:
    """A Python number as a floating-point type stores it."""
    with np.errstate(over="ignore"):
        return float(np.asarray(number, np.float32).astype(dtype.numpy()))


def store(op: Recorder, value: Any) -> Value:
    """A value in the element type of the operator's result."""
    return op.cast(value, op.dtype)


def returned(op: Recorder, *values: Value | None) -> tuple[Value, ...]:
    """What torch's kernel returns: nothing along an axis where its result is that."""
    return tuple(
        op.constant([], fake.dtype) if value is None or _is_nothing(fake) else value
        for value, fake in zip(values, op.result, strict=True)
    )


def _is_nothing(fake: torch.Tensor) -> bool:
    return fake.dim() == 1 and isinstance(fake.shape[0], int) and fake.shape[0] == 0


def like(op: Recorder, number: Any, value: Any) -> Any:
    """A scalar argument, which may be a symbolic number, in the type of a tensor."""
    if isinstance(number, Value) and isinstance(value, Value) and value.dtype is not None:
        return op.cast(number, value.dtype)
    return number


def cast_like(op: Recorder, number: Any, value: Value) -> Value:
    """A number or a result in the type of a tensor, as a result."""
    return op.cast(number, value.dtype or op.dtype)


def is_float(value: Any) -> bool:
    """Whether a tensor or a number is of a floating-point type."""
    if isinstance(value, ir.Value):
        return value.dtype is not None and value.dtype.is_floating_point()
    return isinstance(value, float)


def is_bool(value: Any) -> bool:
    """Whether a tensor or a number is a truth value."""
    if isinstance(value, ir.Value):
        return value.dtype == ir.DataType.BOOL
    return isinstance(value, bool)


def has_any(op: Recorder, x: Value) -> Value:
    """Whether any number is not zero; of nothing, none is."""
    nonzero = op.cast(op.cast(x, ir.DataType.BOOL), ir.DataType.FLOAT)
    found: Value = op.Greater(op.ReduceSum(nonzero, keepdims=0), 0)
    return found


def check_dimension(x: Value, dim: int) -> None:
    """Refuse a dimension that a value has not: torch raises when it runs, not when it traces."""
    rank = max(x.rank or 0, 1)
    if x.rank is not None and not -rank <= dim < rank:
        raise Refused(f"torch has no dimension {dim} of {rank}")


def wide_converter(*names: str) -> Callable[[Formula], Formula]:
    """Register a formula that torch computes in float32 for 16-bit numbers, and rounds once."""

    def register(formula: Formula) -> Formula:
        @converter(*names)
        def convert(op: Recorder, *args: Any, **how: Any) -> Value:
            return store(op, formula(op, *(widen(op, a) for a in args), **how))

        return convert

    return register


def double_converter(*names: str) -> Callable[[Formula], Formula]:
    """Register a formula of one tensor that is right to float32, computed in float64."""

    def register(formula: Formula) -> Formula:
        @converter(*names, when=is_narrow)
        def convert(op: Recorder, x: Value) -> Value:
            return store(op, formula(op, to_double(op, x)))

        return convert

    return register


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
