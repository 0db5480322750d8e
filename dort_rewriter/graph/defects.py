"""What onnxruntime computes wrongly of nodes that are right, at every level of optimization."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir

from dort_rewriter.dtypes import holds
from dort_rewriter.graph import shapes

_D = ir.DataType

_COMPUTED_IN: dict[ir.DataType, ir.DataType] = {
    **dict.fromkeys((_D.FLOAT16, _D.BFLOAT16), _D.FLOAT),
    **dict.fromkeys((_D.INT8, _D.INT16, _D.UINT8), _D.INT32),
}
"""Types without a kernel of Max, and one that holds them."""

_HALVES = frozenset({_D.FLOAT16, _D.BFLOAT16})
MOVES = frozenset(
    "Concat Expand Flatten Gather GatherElements GatherND Identity Reshape Slice Split Squeeze "
    "Transpose Unsqueeze".split()
)
"""Operators with kernels for numbers of 16 bits."""

_OF_NOTHING: dict[str, float] = {
    **dict.fromkeys(("ReduceSum", "ReduceSumSquare", "ReduceL1", "ReduceL2"), 0.0),
    **dict.fromkeys(("ReduceLogSum", "ReduceLogSumExp"), -math.inf),
    "ReduceProd": 1.0,
    "ReduceMean": math.nan,
}
OVER_NOTHING = _OF_NOTHING.keys() | {"ReduceMax", "ReduceMin", "MatMul"}
"""Operators that may have no elements to add up."""


def merged_casts(x: ir.Value, dtype: ir.DataType) -> ir.DataType | None:
    """The type to keep a cast of `x` apart in from the cast that made `x`; None where they may
    be merged.

    NOTE: onnxruntime makes one of two casts, also where the type between loses something: 0.5
    becomes a true value then, though the integer of it is zero. A Max between them prevents that.
    It computes 16-bit numbers in float32, so that what makes them ends in a cast, too.
    """
    before = x.producer()
    if before is None or before.domain or x.dtype is None:
        return None
    if before.op_type != "Cast":
        is_cast = x.dtype in _HALVES and before.op_type not in MOVES
        if not is_cast or dtype.is_floating_point():
            return None
        # onnxruntime leaves a pair of casts out that is its own in part; of float16 it has a Max
        return _D.FLOAT16 if x.dtype == _D.FLOAT16 else _D.FLOAT
    first = before.inputs[0]
    if first is None or first.dtype is None or not _lose(first.dtype, x.dtype, dtype):
        return None
    return _COMPUTED_IN.get(x.dtype, x.dtype)


def _lose(first: ir.DataType, between: ir.DataType, last: ir.DataType) -> bool:
    """Whether two casts give other numbers than one from the first type to the last."""
    if first == _D.BOOL:
        return False
    if last == _D.BOOL:
        return between != _D.BOOL and not holds(between, first)
    whole = not last.is_floating_point()
    if whole and first.is_floating_point() and between.is_floating_point():
        return not holds(between, first)
    return first.is_floating_point() and between == _D.INT64 and whole and last != between


Axis = tuple[ir.Value, int]
"""An axis of a value."""


def over_nothing(
    op: str, inputs: Sequence[ir.Value | None], attributes: Mapping[str, Any]
) -> tuple[float, Sequence[Axis | None]] | None:
    """What a reduction or a product over no elements gives, if it is one: the number, and for
    each of its axes the one of an input that it has the size of, None for those of size one.
    """
    if op == "MatMul":
        return _product_over_nothing(inputs)
    return _reduction_over_nothing(op, inputs, attributes)


def _product_over_nothing(
    inputs: Sequence[ir.Value | None],
) -> tuple[float, Sequence[Axis | None]] | None:
    """NOTE: onnxruntime 1.19 leaves the result as it finds the memory; so do newer ones where the
    second input has more axes than the first.
    """
    a, b = inputs
    if a is None or b is None or a.shape is None or b.shape is None:
        return None
    ranks = len(a.shape), len(b.shape)
    if min(ranks) < 2 or 0 not in (a.shape[-1], b.shape[-2]):
        return None
    axes = [_of_either(a, b, axis) for axis in range(-max(ranks), -2)]
    return 0.0, [*axes, (a, ranks[0] - 2), (b, ranks[1] - 1)]


def _of_either(a: ir.Value, b: ir.Value, axis: int) -> Axis | None:
    """The axis, counted from the last, of the value that decides its size."""
    for value in (a, b):
        assert value.shape is not None
        rank = len(value.shape)
        if rank + axis >= 0 and value.shape[axis] != 1:
            return value, rank + axis
    return None


def _reduction_over_nothing(
    op: str, inputs: Sequence[ir.Value | None], attributes: Mapping[str, Any]
) -> tuple[float, Sequence[Axis | None]] | None:
    """NOTE: onnxruntime gives a result of the shape of the input, without an element."""
    x = inputs[0] if inputs else None
    if x is None or x.shape is None or 0 not in x.shape:
        return None
    if (found := shapes.reduced_axes(inputs, attributes)) is None:
        return None
    rank = len(x.shape)
    reduced = {axis % rank for axis in found}
    is_empty = any(x.shape[axis] == 0 for axis in range(rank) if axis not in reduced)
    if op not in _OF_NOTHING and not is_empty:
        return None  # the largest of nothing
    keep = attributes.get("keepdims", 1)
    axes = [None if i in reduced else (x, i) for i in range(rank) if keep or i not in reduced]
    return _OF_NOTHING.get(op, 0.0), axes
