"""Batch normalization in each form torch dispatches to, and its backward.

In training the statistics are those of the batch; the running variance is the unbiased one. The
forms differ in what they return beside the output.
"""

from __future__ import annotations

import math
from typing import Any

from dort_rewriter.export.converters import own_kernels
from dort_rewriter.export.converters.axes import count_along
from dort_rewriter.export.converters.normalization import asked_gradients, widened
from dort_rewriter.export.converters.opmath import cast_like, returned
from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import Arguments, Refused, by_name, converter
from dort_rewriter.graph.values import Value

_Normalized = tuple[Value | None, ...]
"""The output, the mean, the reciprocal deviation, the running mean and the running variance of a
batch normalization; all but the first are of rank 1."""


def _batch_axes(x: Value) -> list[int]:
    return [0, *range(2, x.rank)]


def _along_channels(op: Recorder, x: Value, like: Value) -> Value:
    """Reshape [C] so that it is broadcast along dimension 1."""
    return op.Reshape(x, op.vector([-1, *[1] * (like.rank - 2)])) if like.rank > 2 else x


def _count(op: Recorder, x: Value) -> Any:
    """How many elements a channel has, in the type of the tensor."""
    found = count_along(op, x, _batch_axes(x))
    return float(found) if isinstance(found, int) else cast_like(op, found, x)


def _in_training(op: Recorder, given: Arguments) -> _Normalized:
    """Normalize with the statistics of the batch, and move the running ones towards them."""
    running = (getattr(given, name, None) for name in ("running_mean", "running_var"))
    x, weight, bias, running_mean, running_var = widened(
        op, given.input, given.weight, given.bias, *running
    )
    eps, momentum = given.eps, given.momentum
    if isinstance(eps, float) and op.takes_own(x, weight, bias):
        y, mean, rstd, variance = own_kernels.batch_norm(op, x, weight, bias, eps)
    else:
        y, mean, rstd, variance = _standardized(op, x, weight, bias, eps)
    if running_mean is not None:
        running_mean = mean * momentum + running_mean * (1 - momentum)
    if running_var is not None:
        count = _count(op, x)
        unbiased = count / (count - 1) if count != 1 else math.inf
        running_var = variance * (momentum * unbiased) + running_var * (1 - momentum)
    return y, mean, rstd, running_mean, running_var


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


def _in_inference(op: Recorder, given: Arguments) -> _Normalized:
    """Normalize with the running statistics."""
    running = (given.running_mean, given.running_var)
    if None in running:
        raise Refused("inference without running statistics")
    x, weight, bias, mean, variance = widened(op, given.input, given.weight, given.bias, *running)
    shape = op.Shape(mean)
    if weight is None:
        weight = op.Expand(op.constant(1.0, x.dtype), shape)
    if bias is None:
        bias = op.Expand(op.constant(0.0, x.dtype), shape)
    y = op.BatchNormalization(x, weight, bias, mean, variance, epsilon=given.eps)
    rstd = op.Reciprocal(op.Sqrt(variance + given.eps))
    return y, mean, rstd, *running


@converter("aten::_native_batch_norm_legit_functional")
@by_name
def native_batch_norm_legit_functional(op: Recorder, given: Arguments) -> tuple[Value, ...]:
    """_native_batch_norm_legit_functional(Tensor input, Tensor? weight, Tensor? bias, Tensor running_mean, Tensor running_var, bool training, float momentum, float eps) -> (Tensor, Tensor, Tensor, Tensor running_mean_out, Tensor running_var_out)"""
    return returned(op, *(_in_training if given.training else _in_inference)(op, given))


@converter("aten::_native_batch_norm_legit.no_stats")
@by_name
def native_batch_norm_legit_no_stats(op: Recorder, given: Arguments) -> tuple[Value, ...]:
    """_native_batch_norm_legit.no_stats(Tensor input, Tensor? weight, Tensor? bias, bool training, float momentum, float eps) -> (Tensor, Tensor, Tensor)"""
    return returned(op, *_in_training(op, given)[:3])


@converter("aten::_native_batch_norm_legit_no_training")
@by_name
def native_batch_norm_legit_no_training(op: Recorder, given: Arguments) -> tuple[Value, ...]:
    """_native_batch_norm_legit_no_training(Tensor input, Tensor? weight, Tensor? bias, Tensor running_mean, Tensor running_var, float momentum, float eps) -> (Tensor, Tensor, Tensor)"""
    return returned(op, *_in_inference(op, given)[:3])


@converter("aten::_batch_norm_with_update_functional")
@by_name
def batch_norm_with_update_functional(op: Recorder, given: Arguments) -> tuple[Value, ...]:
    """_batch_norm_with_update_functional(Tensor input, Tensor? weight, Tensor? bias, Tensor running_mean, Tensor running_var, float momentum, float eps) -> (Tensor, Tensor, Tensor, Tensor, Tensor running_mean_out, Tensor running_var_out)"""
    *normalized, running_mean, running_var = _in_training(op, given)
    return returned(op, *normalized, None, running_mean, running_var)


@converter("aten::_batch_norm_no_update")
@by_name
def batch_norm_no_update(op: Recorder, given: Arguments) -> tuple[Value, ...]:
    """_batch_norm_no_update(Tensor input, Tensor? weight, Tensor? bias, Tensor? running_mean, Tensor? running_var, float momentum, float eps) -> (Tensor, Tensor, Tensor, Tensor)"""
    return returned(op, *_in_inference(op, given)[:3], None)


@converter("aten::native_batch_norm_backward")
@by_name
def native_batch_norm_backward(op: Recorder, given: Arguments) -> tuple[Value | None, ...]:
    """native_batch_norm_backward(Tensor grad_out, Tensor input, Tensor? weight, Tensor? running_mean, Tensor? running_var, Tensor? save_mean, Tensor? save_invstd, bool train, float eps, bool[3] output_mask) -> (Tensor, Tensor, Tensor)"""
    return _backward(op, given, given.train, (given.save_mean, given.save_invstd))


@converter("aten::batch_norm_backward")
@by_name
def batch_norm_backward(op: Recorder, given: Arguments) -> tuple[Value | None, ...]:
    """batch_norm_backward(Tensor grad_out, Tensor input, Tensor weight, Tensor? running_mean, Tensor? running_var, Tensor? save_mean, Tensor? save_var, bool update, float eps, bool[3] output_mask, Tensor reserve) -> (Tensor, Tensor, Tensor)"""
    return _backward(op, given, given.update, (given.save_mean, given.save_var))


def _backward(
    op: Recorder, given: Arguments, train: bool, saved: tuple[Value | None, Value | None]
) -> tuple[Value | None, ...]:
    statistics = saved if train else (given.running_mean, given.running_var)
    if None in statistics:
        raise Refused("the statistics that the forward pass saved are missing")
    read = (given.grad_out, given.input, given.weight, *statistics)
    grad, x, weight, mean, rstd = widened(op, *read)
    if not train:
        rstd = op.Reciprocal(op.Sqrt(rstd + given.eps))
    if op.takes_own(grad, x, weight, mean, rstd):
        gradients = own_kernels.batch_norm_gradient(
            op, grad, x, weight, mean, rstd, train=train, of_input=given.output_mask[0]
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
    if given.output_mask[0]:
        factor = rstd if weight is None else rstd * _along_channels(op, weight, x)
        if train:
            count = _count(op, x)
            grad = grad - grad_bias / count - centred * (along_x * rstd * rstd / count)
        grad_input = grad * factor
    sums = (op.Reshape(s, [-1]) for s in (grad_weight, grad_bias))
    return asked_gradients(op, grad_input, *sums)
