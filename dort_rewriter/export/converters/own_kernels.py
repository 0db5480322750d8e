"""Nodes with kernels of our own, for operators that ONNX takes many nodes for.

NOTE: what they read and return is float32; ``Recorder.takes_own`` is asked first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from dort_rewriter.export.converters.windows import Windows
from dort_rewriter.export.recorder import Recorder
from dort_rewriter.graph.values import Value

__all__ = [
    "batch_norm",
    "batch_norm_gradient",
    "columns",
    "columns_gradient",
    "max_pool",
    "max_pool_gradient",
]


def _numbers(windows: Sequence[Windows]) -> list[int]:
    return [int(n) for w in windows for n in w]


def max_pool(
    op: Recorder, x: Value, windows: Sequence[Windows], *, indexed: bool
) -> tuple[Value, Value | None]:
    """Return the largest element of each window of two axes, and its place if asked."""
    results = op.own("MaxPool", x, outputs=1 + indexed, windows=_numbers(windows))
    if not indexed:
        return results, None
    value, place = results
    place.type = ir.TensorType(ir.DataType.INT64)
    return value, place


def max_pool_gradient(op: Recorder, grad: Value, x: Value, indices: Value) -> Value:
    """Return gradients added at the places their windows chose."""
    result: Value = op.own("MaxPoolGrad", grad, indices, op.sizes(x))
    return result


def columns(op: Recorder, x: Value, windows: Sequence[Windows]) -> Value:
    """Return the elements of the windows of `x` [N, C, H, W] as [C * kernel, N * windows]."""
    result: Value = op.own("Columns", x, windows=_numbers(windows))
    return result


def columns_gradient(op: Recorder, x: Value, shape: Value, windows: Sequence[Windows]) -> Value:
    """Return a tensor of this shape, to which each window adds its column."""
    result: Value = op.own("ColumnsGrad", x, shape, windows=_numbers(windows))
    return result


def _per_channel(op: Recorder, value: Value | None, like: Value, number: float) -> Value:
    if value is not None:
        return value
    size = op.vector([op.size(like, 1)])
    result: Value = op.Expand(op.constant(number, ir.DataType.FLOAT), size)
    return result


def batch_norm(
    op: Recorder, x: Value, weight: Value | None, bias: Value | None, eps: float
) -> tuple[Value, Value, Value, Value]:
    """Return x normalized by its own statistics: their mean, reciprocal deviation, variance."""
    weight, bias = _per_channel(op, weight, x, 1.0), _per_channel(op, bias, x, 0.0)
    y, *statistics = op.own("BatchNorm", x, weight, bias, outputs=4, epsilon=float(eps))
    channels = ir.Shape([x.dims[1]])
    for statistic in statistics:
        statistic.shape = channels
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
    """Return the gradients of x (None if not asked), weight and bias."""
    weight = _per_channel(op, weight, x, 1.0)
    read: tuple[Any, ...] = (grad, x, weight, mean, rstd)
    results = op.own("BatchNormGrad", *read, outputs=2 + of_input, training=int(train))
    of_weight, of_bias, *rest = results
    return rest[0] if of_input else None, of_weight, of_bias
