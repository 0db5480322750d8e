"""Logic on truth values and bitwise operators on integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx_ir as ir

from dort_rewriter.export.converters.opmath import is_bool
from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import converter
from dort_rewriter.graph.values import Value


def _truth(op: Recorder, value: Any) -> Value:
    return op.cast(value, ir.DataType.BOOL)


@converter("aten::bitwise_not")
def bitwise_not(op: Recorder, x: Value) -> Value:
    """bitwise_not(Tensor self) -> Tensor"""
    return op.Not(x) if is_bool(x) else op.BitwiseNot(x)


def _bitwise(onnx_op: str) -> Callable[..., Value]:
    def convert(op: Recorder, x: Any, other: Any) -> Value:
        if is_bool(x) and is_bool(other):
            return op.call(onnx_op, x, other)
        return op.call(f"Bitwise{onnx_op}", op.cast(x, op.dtype), op.cast(other, op.dtype))

    return convert


def _logical(onnx_op: str) -> Callable[..., Value]:
    def convert(op: Recorder, x: Value, other: Value) -> Value:
        return op.call(onnx_op, _truth(op, x), _truth(op, other))

    return convert


for _name in ("And", "Or", "Xor"):
    converter(f"aten::logical_{_name.lower()}")(_logical(_name))
    for _overload in ("Tensor", "Scalar", "Scalar_Tensor"):
        converter(f"aten::bitwise_{_name.lower()}.{_overload}")(_bitwise(_name))


def _shift(op: Recorder, x: Any, places: Any, direction: str) -> Value:
    """Shift as many bits of an int64: ONNX shifts unsigned numbers only."""
    bits = op.call(
        "BitShift",
        op.cast(x, ir.DataType.UINT64),
        op.cast(places, ir.DataType.UINT64),
        direction=direction,
    )
    return op.cast(bits, ir.DataType.INT64)


def _width(op: Recorder) -> int:
    return int(op.dtype.bitwidth)


def left_shift(op: Recorder, x: Any, other: Any) -> Value:
    """bitwise_left_shift.Tensor(Tensor self, Tensor other) -> Tensor"""
    places = op.cast(other, ir.DataType.INT64)
    wide = op.cast(x, ir.DataType.INT64)
    is_inside = op.And(op.GreaterOrEqual(places, 0), op.Less(places, _width(op)))
    shifted = _shift(op, wide, op.Where(is_inside, places, 0), "LEFT")
    return op.cast(op.Where(is_inside, shifted, 0), op.dtype)


def right_shift(op: Recorder, x: Any, other: Any) -> Value:
    """bitwise_right_shift.Tensor(Tensor self, Tensor other) -> Tensor"""
    places = op.cast(other, ir.DataType.INT64)
    wide = op.cast(x, ir.DataType.INT64)
    last = _width(op) - (1 if op.dtype.is_signed() else 0)
    is_inside = op.And(op.GreaterOrEqual(places, 0), op.Less(places, last))
    places = op.Where(is_inside, places, last)
    # A negative number shifts in ones: flip its bits before and after.
    flip = op.Where(op.Less(wide, 0), op.cast(-1, ir.DataType.INT64), 0)
    shifted = op.BitwiseXor(_shift(op, op.BitwiseXor(wide, flip), places, "RIGHT"), flip)
    return op.cast(shifted, op.dtype)


for _direction, _convert in (("left", left_shift), ("right", right_shift)):
    for _overload in ("Tensor", "Tensor_Scalar", "Scalar_Tensor"):
        converter(f"aten::bitwise_{_direction}_shift.{_overload}")(_convert)
    for _overload in ("Tensor", "Scalar"):
        converter(f"aten::__{_direction[0]}shift__.{_overload}")(_convert)
