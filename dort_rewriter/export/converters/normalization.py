"""Layer, group and root-mean-square normalization, and their backward.

NOTE: onnxruntime before 1.20 computes the variance in LayerNormalization as E[x^2] - E[x]^2: NaN
for a mean of 1000 and a deviation of 1. It is given centred numbers, for which this is exact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
import torch

from dort_rewriter.aten import is_contiguous
from dort_rewriter.export.converters import own_kernels
from dort_rewriter.export.converters.axes import count_along
from dort_rewriter.export.converters.opmath import cast_like
from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import Arguments, Refused, by_name, converter
from dort_rewriter.graph.values import Value


def widened(op: Recorder, *values: Value | None) -> tuple[Any, ...]:
    """The values in the type torch computes statistics in: float32 or float64."""
    types = {v.dtype for v in values if v is not None}
    dtype = ir.DataType.DOUBLE if ir.DataType.DOUBLE in types else ir.DataType.FLOAT
    return tuple(None if v is None else op.cast(v, dtype) for v in values)


def _wide(op: Recorder, *values: Value | None) -> tuple[Any, ...]:
    """The same, of tensors with elements."""
    if any(v is not None and 0 in v.dims for v in values):
        # onnxruntime keeps the dimensions of an empty tensor that it reduces.
        raise Refused("an empty tensor")
    return widened(op, *values)


def _standardize(op: Recorder, x: Value, axes: list[int], eps: float) -> tuple[Value, ...]:
    """(x - mean) / deviation, the mean and the reciprocal deviation, dimensions kept."""
    mean = op.ReduceMean(x, axes, keepdims=1)
    centred = x - mean
    variance = op.ReduceMean(centred * centred, axes, keepdims=1)
    rstd = op.Reciprocal(op.Sqrt(variance + eps))
    return centred * rstd, mean + (mean - mean), rstd  # an infinite one is NaN, as in torch


def _through_statistics(
    op: Recorder, x: Value, mean: Value, rstd: Value, of_one: Value, of_x: Value, share: Any
) -> Value:
    """The gradient of x through its mean and deviation, from the sums of the gradient and of its
    product with x, and one divided by how many there are.

    As torch: what is infinite, and what NaN, hangs on the order.
    """
    slope = (of_one * mean - of_x) * rstd * rstd * rstd * share
    return x * slope + (op.Neg(slope * mean) - of_one * rstd * share)


def _share(op: Recorder, x: Value, axes: Sequence[int]) -> Any:
    """One, divided by the elements along some axes."""
    count = count_along(op, x, axes)
    return 1.0 / count if isinstance(count, int) else op.Reciprocal(cast_like(op, count, x))


def _sum_outer(op: Recorder, x: Value, inner: int) -> Value:
    """Sum over all dimensions but the last `inner`."""
    outer = list(range(x.rank - inner))
    return op.ReduceSum(x, outer, keepdims=0) if outer else x


@converter("aten::native_layer_norm")
@by_name
def layer_norm(op: Recorder, given: Arguments) -> tuple[Value, ...]:
    """native_layer_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight, Tensor? bias, float eps) -> (Tensor, Tensor, Tensor)"""
    first = -len(given.normalized_shape)
    axes = list(range(first, 0))
    x, weight, bias = _wide(op, given.input, given.weight, given.bias)
    if isinstance(given.eps, float) and op.takes_own(x, weight, bias):
        return own_kernels.layer_norm(op, x, given.normalized_shape, weight, bias, given.eps)
    if x.dtype is ir.DataType.DOUBLE:  # LayerNormalization would return float32 statistics
        y, mean, rstd = _standardize(op, x, axes, given.eps)
        y = y if weight is None else y * weight
        return y if bias is None else y + bias, mean, rstd
    mean = op.ReduceMean(x, axes, keepdims=1)
    if weight is None:
        weight = op.Expand(op.constant(1.0, x.dtype), op.vector(given.normalized_shape))
    y, _, rstd = op.LayerNormalization(
        x - mean, weight, bias, axis=first, epsilon=given.eps, outputs=3
    )
    return y, mean, rstd


@converter("aten::native_layer_norm_backward")
@by_name
def layer_norm_backward(op: Recorder, given: Arguments) -> tuple[Value | None, ...]:
    """native_layer_norm_backward(Tensor grad_out, Tensor input, SymInt[] normalized_shape, Tensor mean, Tensor rstd, Tensor? weight, Tensor? bias, bool[3] output_mask) -> (Tensor, Tensor, Tensor)"""
    inner = len(given.normalized_shape)
    read = (given.grad_out, given.input, given.mean, given.rstd, given.weight)
    grad, x, mean, rstd, weight = _wide(op, *read)
    if any(given.output_mask) and op.takes_own(grad, x, mean, rstd, weight):
        of_input = bool(given.output_mask[0])
        wide = (grad, x, given.normalized_shape, mean, rstd, weight)
        return asked_gradients(op, *own_kernels.layer_norm_gradient(op, *wide, of_input=of_input))
    standard = (x - mean) * rstd
    grad_input = grad_weight = grad_bias = None
    if given.output_mask[0]:
        scaled = grad if weight is None else grad * weight
        axes = list(range(-inner, 0))
        of_one = op.ReduceSum(scaled, axes, keepdims=1)
        of_x = op.ReduceSum(scaled * x, axes, keepdims=1)
        grad_input = scaled * rstd + _through_statistics(
            op, x, mean, rstd, of_one, of_x, _share(op, x, axes)
        )
    if given.output_mask[1] and weight is not None:
        grad_weight = _sum_outer(op, grad * standard, inner)
    if given.output_mask[2] and given.bias is not None:
        grad_bias = _sum_outer(op, grad, inner)
    return asked_gradients(op, grad_input, grad_weight, grad_bias)


def asked_gradients(op: Recorder, *gradients: Value | None) -> tuple[Value | None, ...]:
    """What torch returns: None where its result is None."""
    return tuple(
        None if fake is None else gradient
        for gradient, fake in zip(gradients, op.result, strict=True)
    )


def _by_group(op: Recorder, x: Value, given: Arguments) -> Value:
    """Reshape [N, C, ...] to [N, group, C / group, HxW]."""
    channels, group = given.C, given.group
    each = channels // group if isinstance(channels, int) else op.Div(channels, group)
    return op.Reshape(x, op.vector([given.N, group, each, given.HxW]))


def _per_channel(op: Recorder, x: Value | None, group: int) -> Value | None:
    """Reshape [C] to [group, C / group, 1]."""
    return None if x is None else op.Reshape(x, op.vector([group, -1, 1]))


def _has_format(node: torch.fx.Node) -> bool:
    """Whether numbers lie as torch's kernel takes them: row-major, or channels-last."""
    value = node.args[0].meta["val"]  # type: ignore[union-attr]
    last = value.permute(0, *range(2, value.dim()), 1)
    return is_contiguous(value) or (value.dim() in (4, 5) and is_contiguous(last))


@converter("aten::native_group_norm", when=_has_format)
@by_name
def group_norm(op: Recorder, given: Arguments) -> tuple[Value, ...]:
    """native_group_norm(Tensor input, Tensor? weight, Tensor? bias, SymInt N, SymInt C, SymInt HxW, int group, float eps) -> (Tensor, Tensor, Tensor)"""
    x, weight, bias = _wide(op, given.input, given.weight, given.bias)
    grouped = _by_group(op, x, given)
    if isinstance(given.eps, float) and op.takes_own(x, weight, bias):
        sizes = [grouped.dims[i] for i in (2, 3)]
        # The cast comes last: the kernel takes it in, and moments of 16-bit numbers have an order.
        rows = op.cast(op.Reshape(given.input, op.vector([given.N, given.group, -1])), x.dtype)
        length = math.prod(sizes) if all(isinstance(s, int) for s in sizes) else op.size(rows, 2)
        _, mean, rstd = own_kernels.layer_norm(op, rows, [length], None, None, given.eps)
        mean, rstd = op.Unsqueeze(mean, [3]), op.Unsqueeze(rstd, [3])
    else:
        _, mean, rstd = _standardize(op, grouped, [2, 3], given.eps)
    # As torch: what is infinite, and what NaN, where a weight is infinite, hangs on that.
    if weight is None and bias is None:
        y = (grouped - mean) * rstd
    else:
        scale = rstd if weight is None else rstd * _per_channel(op, weight, given.group)
        shift = (0.0 if bias is None else _per_channel(op, bias, given.group)) - scale * mean
        y = grouped * scale + shift
    return op.Reshape(y, op.Shape(x)), op.Squeeze(mean, [2, 3]), op.Squeeze(rstd, [2, 3])


@converter("aten::native_group_norm_backward")
@by_name
def group_norm_backward(op: Recorder, given: Arguments) -> tuple[Value | None, ...]:
    """native_group_norm_backward(Tensor grad_out, Tensor input, Tensor mean, Tensor rstd, Tensor? weight, SymInt N, SymInt C, SymInt HxW, int group, bool[3] output_mask) -> (Tensor, Tensor, Tensor)"""
    read = (given.grad_out, given.input, given.mean, given.rstd, given.weight)
    grad, x, mean, rstd, weight = _wide(op, *read)
    shape = op.Shape(x)
    grad, x = _by_group(op, grad, given), _by_group(op, x, given)
    mean, rstd = op.Unsqueeze(mean, [2, 3]), op.Unsqueeze(rstd, [2, 3])
    grad_input = grad_weight = grad_bias = None
    # As torch: what is infinite, and what NaN, hangs on that.
    of_x, of_one = (op.ReduceSum(g, [3], keepdims=1) for g in (grad * x, grad))
    if given.output_mask[0]:
        factor = None if weight is None else _per_channel(op, weight, given.group)
        sums = (of_x, of_one) if factor is None else (of_x * factor, of_one * factor)
        along_x, along_one = (op.ReduceSum(v, [2], keepdims=1) for v in sums)
        through = _through_statistics(op, x, mean, rstd, along_one, along_x, _share(op, x, [2, 3]))
        scale = rstd if factor is None else rstd * factor
        grad_input = op.Reshape(grad * scale + through, shape)
    if given.output_mask[1]:
        each = (of_x - of_one * mean) * rstd
        grad_weight = op.Reshape(op.ReduceSum(each, [0], keepdims=0), [-1])
    if given.output_mask[2]:
        grad_bias = op.Reshape(op.ReduceSum(of_one, [0], keepdims=0), [-1])
    return asked_gradients(op, grad_input, grad_weight, grad_bias)
