"""Nodes with kernels of our own, for operators that ONNX takes many nodes for.

NOTE: what they read and return is float32, unless they say otherwise; ``Recorder.takes_own`` is
asked first.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from dort_rewriter.export.converters.opmath import is_float
from dort_rewriter.export.converters.windows import Windows
from dort_rewriter.export.recorder import Recorder
from dort_rewriter.graph.values import Value


def numbers(windows: Sequence[Windows]) -> list[int]:
    """The windows as an attribute: all numbers of each axis, one after the other."""
    return [int(n) for w in windows for n in w]


def max_pool(
    op: Recorder, x: Value, windows: Sequence[Windows], *, indexed: bool
) -> tuple[Value, Value | None]:
    """The largest element of each window of two axes, and its place if asked."""
    results = op.own("MaxPool", x, outputs=1 + indexed, windows=numbers(windows))
    if not indexed:
        return results, None
    value, place = results
    place.type = ir.TensorType(ir.DataType.INT64)
    return value, place


def order(
    op: Recorder,
    x: Value,
    count: Value,
    axis: int,
    *,
    largest: bool,
    select: bool = True,
    sorted: bool = True,
) -> Value:
    """The places of the first elements along an axis as torch's kernels choose them.

    The elements are selected, or all are sorted; their type is any.
    """
    exact = {ir.DataType.FLOAT: ir.DataType.FLOAT, ir.DataType.DOUBLE: ir.DataType.DOUBLE}
    narrow = ir.DataType.FLOAT if is_float(x) else ir.DataType.INT64
    assert x.dtype is not None
    x = op.cast(x, exact.get(x.dtype, narrow))
    to_last = [i for i in range(x.rank) if i != axis] + [axis]
    if to_last != list(range(x.rank)):
        x = op.Transpose(x, perm=to_last)
    how = {"largest": int(largest), "select": int(select), "sorted": int(sorted)}
    places: Value = op.own("Order", x, count, **how)
    places.type = ir.TensorType(ir.DataType.INT64)
    places.shape = ir.Shape([*x.dims[:-1], None])
    if to_last == list(range(x.rank)):
        return places
    return op.Transpose(places, perm=[to_last.index(i) for i in range(x.rank)])


def _filled(op: Recorder, value: Value | None, sizes: Sequence[Any], number: float) -> Value:
    if value is not None:
        return value
    result: Value = op.Expand(op.constant(number, ir.DataType.FLOAT), op.vector(sizes))
    return result


def batch_norm(
    op: Recorder, x: Value, weight: Value | None, bias: Value | None, eps: float
) -> tuple[Value, Value, Value, Value]:
    """x normalized by its own statistics: their mean, reciprocal deviation, variance."""
    channels = [op.size(x, 1)]
    weight, bias = _filled(op, weight, channels, 1.0), _filled(op, bias, channels, 0.0)
    y, *statistics = op.own("BatchNorm", x, weight, bias, outputs=4, epsilon=float(eps))
    for statistic in statistics:
        statistic.shape = ir.Shape([x.dims[1]])
    mean, rstd, variance = statistics
    return y, mean, rstd, variance


def batch_norm_gradient(
    op: Recorder,
    grad: Value,
    x: Value,
    weight: Value | None,
    mean: Value,
    rstd: Value,
    *,
    train: bool,
    of_input: bool,
) -> tuple[Value | None, Value, Value]:
    """The gradients of x (None if not asked), weight and bias."""
    weight = _filled(op, weight, [op.size(x, 1)], 1.0)
    read: tuple[Any, ...] = (grad, x, weight, mean, rstd)
    results = op.own("BatchNormGrad", *read, outputs=2 + of_input, training=int(train))
    of_weight, of_bias, *rest = results
    return rest[0] if of_input else None, of_weight, of_bias


def layer_norm(
    op: Recorder,
    x: Value,
    normalized_shape: Sequence[Any],
    weight: Value | None,
    bias: Value | None,
    eps: float,
) -> tuple[Value, Value, Value]:
    """x normalized over its last axes, the mean and the reciprocal deviation."""
    weight = _filled(op, weight, normalized_shape, 1.0)
    bias = _filled(op, bias, normalized_shape, 0.0)
    how: dict[str, Any] = {"axes": len(normalized_shape), "epsilon": float(eps)}
    if not _joins_lanes_apart():
        how["lanes_apart"] = 0
    results = op.own("LayerNorm", x, weight, bias, outputs=3, **how)
    y, mean, rstd = results
    return y, mean, rstd


@functools.cache
def _joins_lanes_apart() -> bool:
    """Whether torch joins the moments of vectors in another order than those of numbers: newer
    versions do, which have an infinite variance where others have none."""
    with unset_fake_temporarily():
        x = torch.tensor([1.0, 3e19, *[1.0] * 6])
        return bool(torch.native_layer_norm(x, (8,), None, None, 1e-5)[2] == 0)


def layer_norm_gradient(
    op: Recorder,
    grad: Value,
    x: Value,
    normalized_shape: Sequence[Any],
    mean: Value,
    rstd: Value,
    weight: Value | None,
    *,
    of_input: bool,
) -> tuple[Value | None, Value, Value]:
    """The gradients of x (None if not asked), weight and bias."""
    weight = _filled(op, weight, normalized_shape, 1.0)
    read = (grad, x, mean, rstd, weight)
    results = op.own("LayerNormGrad", *read, outputs=2 + of_input, axes=len(normalized_shape))
    of_weight, of_bias, *rest = results
    return rest[0] if of_input else None, of_weight, of_bias


def variance(
    op: Recorder, x: Value, axes: Sequence[int], correction: float, *, root: bool, with_mean: bool
) -> tuple[Value, Value | None]:
    """The variance along axes, or its root, and the mean, if it is asked for; dimensions kept."""
    others = [i for i in range(x.rank) if i not in axes]
    perm = [*others, *axes]
    rows = x if perm == list(range(x.rank)) else op.Transpose(x, perm=perm)
    how: dict[str, Any] = {"axes": len(axes), "correction": float(correction), "root": int(root)}
    # What torch computes where the result is one number, as long as the mean is unused.
    how["float_mean"] = int(all(x.dims[i] == 1 for i in others) and not with_mean)
    results = op.own("Variance", rows, outputs=1 + with_mean, **how)
    made = list(results) if with_mean else [results]
    for value in made:
        value.shape = ir.Shape([*(x.dims[i] for i in others), *[1] * len(axes)])
    if rows is not x:
        made = [op.Transpose(v, perm=[perm.index(i) for i in range(x.rank)]) for v in made]
    return made[0], made[1] if with_mean else None


def write_rows(
    op: Recorder, x: Value, index: Value, rows: Value, axis: int, *, wrap: bool = False
) -> Value:
    """x with the rows at these places along an axis replaced; with ``wrap`` places may count from
    the end. The memory of x may be that of the result."""
    places = op.Reshape(op.cast(index, ir.DataType.INT64), [-1])
    result: Value = op.own("WriteRows", places, x, rows, axis=axis, wrap=int(wrap))
    result.shape = x.shape
    return result
