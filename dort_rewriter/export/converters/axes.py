"""Sizes, axes and positions: what the converters of views, slices and indices share.

Indices that torch refuses and ONNX takes are refused: those below zero, which count from the end
there. NOTE: onnxruntime checks that an index is inside when it reads or writes there, so that a
wrong one only has to be moved out of every tensor. What the user gets to see is torch's error: a
run that fails is done again there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from dort_rewriter.export.recorder import Recorder
from dort_rewriter.graph.shapes import may_be_zero
from dort_rewriter.graph.values import Value

END = 2**63 - 1
"""Past the end of any axis."""


def size_names(dims: Sequence[int | ir.SymbolicDim]) -> list[int | str | None]:
    """Sizes in a form that compares: a number, a symbol's name, or None when unknown."""
    return [d if isinstance(d, int) else d.value for d in dims]


def result_dims(op: Recorder) -> list[int | str]:
    """The sizes of the result of the FX node under conversion."""
    return [d if isinstance(d, int) else str(d.node.expr) for d in op.result.shape]


def reshape(op: Recorder, x: Value, dims: Sequence[int | str], size: Sequence[Any]) -> Value:
    """Reshape to `size`, whose sizes are known as `dims`, with as little computing as can be.

    A size that stays where it was is copied (0), one unknown size is inferred (-1), which cannot
    be told where another is zero.
    """
    have = size_names(x.dims)
    if have == list(dims):
        return x
    known = [d if isinstance(d, int) else s for d, s in zip(dims, size, strict=True)]
    if 0 in dims:
        return op.Reshape(x, op.vector(known), allowzero=1)
    target: list[Any] = []
    for i, (d, s) in enumerate(zip(dims, size, strict=True)):
        if isinstance(d, int):
            target.append(d)
        else:
            target.append(0 if i < len(have) and have[i] == d else s)
    computed = [i for i, s in enumerate(target) if isinstance(s, ir.Value)]
    if computed and not any(type(s) is int and s == -1 for s in target):
        empty = [i for i, d in enumerate(dims) if may_be_zero(d)]
        inferred = next((i for i in computed if [i] == empty), computed[0])
        if not set(empty) <= {inferred}:
            return op.Reshape(x, op.vector(known), allowzero=1)
        target[inferred] = -1
    return op.Reshape(x, op.vector(target))


def repeated(op: Recorder, x: Value, times: Sequence[int]) -> Value:
    """Each element of float32 so many times along the last axes: faster than Expand."""
    result: Value = op.Resize(
        x,
        None,
        [1.0] * (x.rank - len(times)) + [float(n) for n in times],
        mode="nearest",
        nearest_mode="floor",
        coordinate_transformation_mode="asymmetric",
    )
    return result


def flatten(op: Recorder, x: Value) -> Value:
    """The elements along one axis."""
    return x if x.rank == 1 else op.Reshape(x, [-1])


def at_least_1d(op: Recorder, x: Value) -> Value:
    """A 0-d value as one element along an axis, any other as it is."""
    return op.Reshape(x, [1]) if x.rank == 0 else x


def to_front(op: Recorder, x: Value, axes: Sequence[int]) -> Value:
    """Move axes to the front, in the order given."""
    rest = [i for i in range(x.rank) if i not in axes]
    return op.Transpose(x, perm=[*axes, *rest])


def from_front(op: Recorder, x: Value, axes: Sequence[int]) -> Value:
    """Undo :func:`to_front`."""
    rest = [i for i in range(x.rank) if i not in axes]
    moved = [*axes, *rest]
    return op.Transpose(x, perm=[moved.index(i) for i in range(x.rank)])


def pad_axes(
    op: Recorder,
    x: Value,
    pads: Sequence[int | Value],
    axes: Sequence[int],
    filler: Any = None,
    **attributes: Any,
) -> Value:
    """Pad some axes: what goes in front of each, then what goes behind each; negative to crop.

    NOTE: the amounts are written out for all axes. Pad has an input for fewer, which the optimizer
    of onnxruntime 1.19 overlooks when it moves a Transpose across: the session is not built.
    """
    amounts: list[int | Value] = [0] * (2 * x.rank)
    for place, axis in enumerate(axes):
        amounts[axis % x.rank] = pads[place]
        amounts[axis % x.rank + x.rank] = pads[place + len(axes)]
    return pad_whole(op, x, amounts, filler, **attributes)


def pad_whole(
    op: Recorder, x: Value, amounts: Sequence[Any], filler: Any = None, **attributes: Any
) -> Value:
    """Pad or crop by amounts for all axes: those in front, then those behind.

    NOTE: onnxruntime 1.19 gives wrong elements where it crops all of an axis on one side and pads
    it on the other: such an axis is padded, then cropped. Where nothing is padded, a Slice crops:
    ONNX's own evaluator takes no negative amounts.
    """
    if all(isinstance(a, int) and a <= 0 for a in amounts):
        return _crop(
            op, x, amounts, [i for i in range(x.rank) if amounts[i] or amounts[i + x.rank]]
        )
    befores, afters = amounts[: x.rank], amounts[x.rank :]
    turned = [
        axis
        for axis, (before, after) in enumerate(zip(befores, afters, strict=True))
        if _may_crop_all(before, after, x.dims[axis])
    ]
    kept = [a if i % x.rank not in turned else max(a, 0) for i, a in enumerate(amounts)]
    result: Value = op.Pad(x, op.vector(kept), *([] if filler is None else [filler]), **attributes)
    if not turned:
        return result
    return _crop(op, result, amounts, turned)


def _crop(op: Recorder, x: Value, amounts: Sequence[Any], axes: Sequence[int]) -> Value:
    """Crop some axes by what is negative of the amounts for all."""
    if not axes:
        return x
    starts = [-min(amounts[axis], 0) for axis in axes]
    ends = [min(amounts[axis + x.rank], 0) or END for axis in axes]
    result: Value = op.Slice(x, starts, ends, axes)
    return result


def _may_crop_all(before: Any, after: Any, size: int | ir.SymbolicDim) -> bool:
    if not isinstance(before, int) or not isinstance(after, int):
        return False
    crop, added = sorted((before, after))
    return crop < 0 < added and (not isinstance(size, int) or size <= -crop)


def zeros(op: Recorder, sizes: Sequence[Any] | Value, dtype: ir.DataType | None = None) -> Value:
    """Zeros, of the type of the operator's result unless it is said."""
    shape = sizes if isinstance(sizes, Value) else op.vector(sizes)
    return op.ConstantOfShape(shape, value=ir.tensor([0], dtype=dtype or op.dtype))


def product(op: Recorder, sizes: Sequence[int | Value]) -> int | Value:
    """The product of sizes: an int where it is known, a rank-1 result otherwise."""
    result: int | Value = math.prod(s for s in sizes if isinstance(s, int))
    if result == 0:
        return 0
    for size in sizes:
        if not isinstance(size, int):
            result = size if result == 1 else op.Mul(size, result)
    return result


def count_along(op: Recorder, x: Value, axes: Sequence[int]) -> int | Value:
    """How many elements axes have together: a number, or an int64 of rank 0."""
    sizes = [op.size(x, axis) for axis in axes]
    if all(isinstance(s, int) for s in sizes):
        return product(op, sizes)
    return op.ReduceProd(op.vector(sizes), keepdims=0)


def broadcast_sizes(op: Recorder, values: Sequence[Value]) -> list[int | Value]:
    """The sizes that several results broadcast to."""
    rank = max(v.rank for v in values)
    sizes: list[int | Value] = []
    for axis in range(-rank, 0):
        found = [v for v in values if v.rank >= -axis and v.dims[axis] != 1]
        static = [d for d in (v.dims[axis] for v in found) if isinstance(d, int)]
        if not found:
            sizes.append(1)
        else:
            sizes.append(static[0] if static else op.size(found[0], axis))
    return sizes


def normalize_position(op: Recorder, position: Any, size: int | Value) -> int | Value:
    """Count a position from the start and keep it within 0 and `size`, as slices do.

    Numbers give a number, everything else a rank-1 result.
    """
    if not isinstance(position, ir.Value):
        if isinstance(size, int):
            return min(max(position + size if position < 0 else position, 0), size)
        if position == 0 or position >= END:
            return 0 if position == 0 else size
        return op.Min(size, [position]) if position > 0 else op.Max(op.Add(size, [position]), [0])
    flat = op.Reshape(position, [-1])
    length = op.vector([size])
    counted = op.Where(op.Less(flat, [0]), op.Add(flat, length), flat)
    return op.Min(op.Max(counted, [0]), length)


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
