"""Batch normalization in each form torch dispatches to, and its backward.

In training the statistics are those of the batch; the running variance is the unbiased one. The
forms differ in what they return beside the output.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir
import torch

from dort_rewriter.export.converters import own_kernels
from dort_rewriter.export.converters.normalization import asked_gradients, widened
from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import Refused, converter
from dort_rewriter.graph.values import Value

Masks = Sequence[bool]


@dataclass(frozen=True)
class _Normalized:
    """What a batch normalization computes; the statistics are of rank 1."""

    output: Value
    mean: Value | None = None
    rstd: Value | None = None
    running_mean: Value | None = None
    running_var: Value | None = None


def _batch_axes(x: Value) -> list[int]:
    return [0, *range(2, x.rank)]


def _along_channels(op: Recorder, x: Value, like: Value) -> Value:
    """Reshape [C] so that it is broadcast along dimension 1."""
    return op.Reshape(x, op.vector([-1, *[1] * (like.rank - 2)])) if like.rank > 2 else x


def _count(op: Recorder, x: Value) -> Any:
    """How many elements a channel has: a number, or a rank-0 result."""
    sizes = [op.size(x, axis) for axis in _batch_axes(x)]
    if all(isinstance(s, int) for s in sizes):
        return float(math.prod(s for s in sizes if isinstance(s, int)))
    return op.cast(op.ReduceProd(op.vector(sizes), keepdims=0), x.dtype or ir.DataType.FLOAT)


def _in_training(
    op: Recorder,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value | None,
    running_var: Value | None,
    momentum: float,
    eps: float,
) -> _Normalized:
    """Normalize with the statistics of the batch, and move the running ones towards them."""
    x, weight, bias, running_mean, running_var = widened(
        op, x, weight, bias, running_mean, running_var
    )
    if x.rank > 2 and isinstance(eps, float) and op.takes_own(x, weight, bias):
        y, mean, rstd, variance = own_kernels.batch_norm(op, x, weight, bias, eps)
    else:
        y, mean, rstd, variance = _standardized(op, x, weight, bias, eps)
    if running_mean is not None:
        running_mean = mean * momentum + running_mean * (1 - momentum)
    if running_var is not None:
        count = _count(op, x)
        unbiased = count / (count - 1) if count != 1 else math.inf
        running_var = variance * (momentum * unbiased) + running_var * (1 - momentum)
    return _Normalized(y, mean, rstd, running_mean, running_var)


def _standardized(
    op: Recorder, x: Value, weight: Value | None, bias: Value | None, eps: float
) -> tuple[Value, ...]:
    """x normalized by its own statistics: mean, reciprocal deviation, variance."""
    axes = _batch_axes(x)
    mean = op.ReduceMean(x, axes, keepdims=1)
    centred = x - mean
    variance = op.ReduceMean(centred * centred, axes, keepdims=1)
    rstd = op.Reciprocal(op.Sqrt(variance + eps))
    # As torch: what is infinite, and what NaN, where a weight is infinite, hangs on that.
    factor = rstd if weight is None else rstd * _along_channels(op, weight, x)
    y = x * factor + ((0.0 if bias is None else _along_channels(op, bias, x)) - mean * factor)
    return (y, *(op.Reshape(v, [-1]) for v in (mean, rstd, variance)))


def _in_inference(
    op: Recorder,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value | None,
    running_var: Value | None,
    eps: float,
) -> _Normalized:
    """Normalize with the running statistics."""
    if running_mean is None or running_var is None:
        raise Refused("inference without running statistics")
    x, weight, bias, mean, variance = widened(op, x, weight, bias, running_mean, running_var)
    shape = op.Shape(mean)
    if weight is None:
        weight = op.Expand(op.constant(1.0, x.dtype), shape)
    if bias is None:
        bias = op.Expand(op.constant(0.0, x.dtype), shape)
    y = op.BatchNormalization(x, weight, bias, mean, variance, epsilon=eps)
    rstd = op.Reciprocal(op.Sqrt(variance + eps))
    return _Normalized(y, mean, rstd, running_mean, running_var)


def _returned(op: Recorder, *values: Value | None) -> tuple[Value, ...]:
    """What torch returns: an empty tensor where its result is one."""
    return tuple(
        _empty(op, fake) if value is None or _is_empty(fake) else value
        for value, fake in zip(values, op.result, strict=True)
    )


def _is_empty(fake: torch.Tensor) -> bool:
    return fake.dim() == 1 and isinstance(fake.shape[0], int) and fake.shape[0] == 0


def _empty(op: Recorder, fake: torch.Tensor) -> Value:
    return op.constant([], fake.dtype)


@converter("aten::_native_batch_norm_legit_functional")
def native_batch_norm_legit_functional(
    op: Recorder,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value,
    running_var: Value,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Value, ...]:
    """_native_batch_norm_legit_functional(Tensor input, Tensor? weight, Tensor? bias, Tensor running_mean, Tensor running_var, bool training, float momentum, float eps) -> (Tensor, Tensor, Tensor, Tensor running_mean_out, Tensor running_var_out)"""
    if training:
        n = _in_training(op, input, weight, bias, running_mean, running_var, momentum, eps)
    else:
        n = _in_inference(op, input, weight, bias, running_mean, running_var, eps)
    return _returned(op, n.output, n.mean, n.rstd, n.running_mean, n.running_var)


@converter("aten::_native_batch_norm_legit.no_stats")
def native_batch_norm_legit_no_stats(
    op: Recorder,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Value, ...]:
    """_native_batch_norm_legit.no_stats(Tensor input, Tensor? weight, Tensor? bias, bool training, float momentum, float eps) -> (Tensor, Tensor, Tensor)"""
    n = _in_training(op, input, weight, bias, None, None, momentum, eps)
    return _returned(op, n.output, n.mean, n.rstd)


@converter("aten::_native_batch_norm_legit_no_training")
def native_batch_norm_legit_no_training(
    op: Recorder,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value,
    running_var: Value,
    momentum: float,
    eps: float,
) -> tuple[Value, ...]:
    """_native_batch_norm_legit_no_training(Tensor input, Tensor? weight, Tensor? bias, Tensor running_mean, Tensor running_var, float momentum, float eps) -> (Tensor, Tensor, Tensor)"""
    n = _in_inference(op, input, weight, bias, running_mean, running_var, eps)
    return _returned(op, n.output, n.mean, n.rstd)


@converter("aten::_batch_norm_with_update_functional")
def batch_norm_with_update_functional(
    op: Recorder,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value,
    running_var: Value,
    momentum: float,
    eps: float,
) -> tuple[Value, ...]:
    """_batch_norm_with_update_functional(Tensor input, Tensor? weight, Tensor? bias, Tensor running_mean, Tensor running_var, float momentum, float eps) -> (Tensor, Tensor, Tensor, Tensor, Tensor running_mean_out, Tensor running_var_out)"""
    n = _in_training(op, input, weight, bias, running_mean, running_var, momentum, eps)
    return _returned(op, n.output, n.mean, n.rstd, None, n.running_mean, n.running_var)


@converter("aten::_batch_norm_no_update")
def batch_norm_no_update(
    op: Recorder,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value | None,
    running_var: Value | None,
    momentum: float,
    eps: float,
) -> tuple[Value, ...]:
    """_batch_norm_no_update(Tensor input, Tensor? weight, Tensor? bias, Tensor? running_mean, Tensor? running_var, float momentum, float eps) -> (Tensor, Tensor, Tensor, Tensor)"""
    n = _in_inference(op, input, weight, bias, running_mean, running_var, eps)
    return _returned(op, n.output, n.mean, n.rstd, None)


@converter("aten::native_batch_norm_backward")
def native_batch_norm_backward(
    op: Recorder,
    grad_out: Value,
    input: Value,
    weight: Value | None,
    running_mean: Value | None,
    running_var: Value | None,
    save_mean: Value | None,
    save_invstd: Value | None,
    train: bool,
    eps: float,
    output_mask: Masks,
) -> tuple[Value | None, ...]:
    """native_batch_norm_backward(Tensor grad_out, Tensor input, Tensor? weight, Tensor? running_mean, Tensor? running_var, Tensor? save_mean, Tensor? save_invstd, bool train, float eps, bool[3] output_mask) -> (Tensor, Tensor, Tensor)"""
    statistics = (save_mean, save_invstd) if train else (running_mean, running_var)
    if None in statistics:
        raise Refused("the statistics that the forward pass saved are missing")
    grad, x, weight, mean, rstd = widened(op, grad_out, input, weight, *statistics)
    if not train:
        rstd = op.Reciprocal(op.Sqrt(rstd + eps))
    if x.rank > 2 and op.takes_own(grad, x, weight, mean, rstd):
        gradients = own_kernels.batch_norm_gradient(
            op, grad, x, weight, mean, rstd, train=train, of_input=output_mask[0]
        )
        return asked_gradients(op, *gradients)
    mean, rstd = _along_channels(op, mean, x), _along_channels(op, rstd, x)
    axes = _batch_axes(x)
    grad_bias = op.ReduceSum(grad, axes, keepdims=1)
    centred = x - mean
    # As torch: what is zero, infinite or NaN where a deviation is, hangs on the order.
    along_x = op.ReduceSum(grad * centred, axes, keepdims=1)
    grad_weight = along_x * rstd
    grad_input = None
    if output_mask[0]:
        factor = rstd if weight is None else rstd * _along_channels(op, weight, x)
        if train:
            count = _count(op, x)
            grad = grad - grad_bias / count - centred * (along_x * rstd * rstd / count)
        grad_input = grad * factor
    sums = (op.Reshape(s, [-1]) for s in (grad_weight, grad_bias))
    return asked_gradients(op, grad_input, *sums)


@converter("aten::batch_norm_backward")
def batch_norm_backward(
    op: Recorder,
    grad_out: Value,
    input: Value,
    weight: Value,
    running_mean: Value | None,
    running_var: Value | None,
    save_mean: Value | None,
    save_var: Value | None,
    update: bool,
    eps: float,
    output_mask: Masks,
    reserve: Value,
) -> tuple[Value | None, ...]:
    """batch_norm_backward(Tensor grad_out, Tensor input, Tensor weight, Tensor? running_mean, Tensor? running_var, Tensor? save_mean, Tensor? save_var, bool update, float eps, bool[3] output_mask, Tensor reserve) -> (Tensor, Tensor, Tensor)"""
    return native_batch_norm_backward(
        op,
        grad_out,
        input,
        weight,
        running_mean,
        running_var,
        save_mean,
        save_var,
        update,
        eps,
        output_mask,
    )
