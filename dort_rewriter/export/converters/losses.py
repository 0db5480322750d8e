"""Losses and distances, where a kernel of torch says more than the parts of it do."""

from __future__ import annotations

import math
from typing import Any

from dort_rewriter.export.converters.axes import broadcast_sizes, refuse_negative
from dort_rewriter.export.converters.opmath import cast_like, store, widen
from dort_rewriter.export.converters.powers import log1p_curve
from dort_rewriter.export.converters.reductions import extremum, mean, total
from dort_rewriter.export.converters.scattering import scatter
from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import converter
from dort_rewriter.graph.values import Value

_LEAST = -100.0
"""Below it torch cuts a logarithm off."""

_NONE, _MEAN = 0, 1


@converter("aten::binary_cross_entropy")
def binary_cross_entropy(
    op: Recorder, x: Value, target: Value, weight: Value | None = None, reduction: int = _MEAN
) -> Value:
    """binary_cross_entropy(Tensor self, Tensor target, Tensor? weight=None, int reduction=Mean) -> Tensor

    NOTE: torch raises where a number is no probability; in a model the logarithm is NaN.
    """
    x, target = widen(op, x), widen(op, target)
    of_one = op.Max(op.Log(x), _LEAST)
    of_zero = op.Max(log1p_curve(op, op.Neg(x)), _LEAST)
    loss = op.Sub(op.Mul(op.Sub(target, 1.0), of_zero), op.Mul(target, of_one))
    if weight is not None:
        loss = op.Mul(loss, widen(op, weight))
    if reduction == _NONE:
        return store(op, loss)
    return store(op, mean(op, loss) if reduction == _MEAN else total(op, loss))


@converter("aten::nll_loss_backward", "aten::nll_loss2d_backward")
def nll_loss_backward(
    op: Recorder,
    grad_output: Value,
    x: Value,
    target: Value,
    weight: Value | None,
    reduction: int,
    ignore_index: Any,
    total_weight: Value,
) -> Value:
    """nll_loss_backward(Tensor grad_output, Tensor self, Tensor target, Tensor? weight, int reduction, SymInt ignore_index, Tensor total_weight) -> Tensor

    NOTE: torch's decomposition multiplies zeros with the gradient and the weights: -0.0 for some,
    NaN beside an infinity.
    """
    axis = 0 if x.rank == 1 else 1
    if x.rank == 1:
        target = op.Reshape(target, op.constant([1]))
    gradient = widen(op, grad_output)
    if reduction == _MEAN:
        gradient = op.Div(gradient, widen(op, total_weight))
    is_ignored = op.Equal(target, ignore_index)
    places = refuse_negative(op, op.Where(is_ignored, 0, target))
    if weight is not None:
        gradient = op.Mul(gradient, op.Gather(widen(op, weight), places))
    chosen = store(op, op.Where(is_ignored, 0.0, op.Neg(gradient)))
    if axis:
        places, chosen = (op.Unsqueeze(v, [axis]) for v in (places, chosen))
    return scatter(op, op.Expand(op.constant(0.0, op.dtype), op.Shape(x)), axis, places, chosen)


def _differences(op: Recorder, a: Value, b: Value) -> Value:
    """Each row of `a` less each row of `b`."""
    return op.Sub(op.Unsqueeze(a, [a.rank - 1]), op.Unsqueeze(b, [b.rank - 2]))


@converter("aten::_cdist_forward")
def cdist_forward(op: Recorder, x1: Value, x2: Value, p: float, compute_mode: int | None) -> Value:
    """_cdist_forward(Tensor x1, Tensor x2, float p, int? compute_mode) -> Tensor

    NOTE: the differences themselves, also where torch takes the product of the matrices (p = 2 and
    more than 25 rows): slower, and exact for rows that lie close together.
    """
    away = op.Abs(_differences(op, x1, x2))
    if p == math.inf:  # torch counts no NaN
        return extremum(op, "ReduceMax", op.Where(op.IsNaN(away), 0, away), [-1], False)
    if p == 0:
        parts = op.cast(op.Not(op.Equal(away, 0)), op.dtype)
        parts = op.Where(op.IsNaN(away), away, parts)  # torch counts up to it
        return op.ReduceSum(parts, [-1], keepdims=0)
    if p == 1:
        return op.ReduceSum(away, [-1], keepdims=0)
    if p == 2:
        return op.Sqrt(op.ReduceSum(op.Mul(away, away), [-1], keepdims=0))
    return _power(op, op.ReduceSum(_power(op, away, p), [-1], keepdims=0), 1 / p)


@converter("aten::_cdist_backward")
def cdist_backward(
    op: Recorder, grad: Value, x1: Value, x2: Value, p: float, cdist: Value
) -> Value:
    """_cdist_backward(Tensor grad, Tensor x1, Tensor x2, float p, Tensor cdist) -> Tensor"""
    difference = _differences(op, x1, x2)
    if p == 0:
        sizes = [*broadcast_sizes(op, [x1, grad])[:-1], op.size(x1, -1)]
        return op.Expand(op.constant(0, op.dtype), op.vector(sizes))
    last = [grad.rank]
    slope, distance = op.Unsqueeze(grad, last), op.Unsqueeze(cdist, last)
    away, sign = op.Abs(difference), op.Sign(difference)
    if p == math.inf:
        # NOTE: torch multiplies with one or zero, and NaN where there is a difference of none.
        apart = op.Sub(away, distance)
        is_farthest = op.Where(op.IsNaN(apart), apart, op.cast(op.Equal(apart, 0), op.dtype))
        parts = op.Mul(op.Mul(slope, sign), is_farthest)
    elif p == 1:
        parts = op.Mul(slope, sign)
    else:
        # The gradient of a distance of zero is zero, below one as is that of an equal coordinate.
        ratio = op.Div(
            difference if p == 2 else _power(op, away, p - 1), _power(op, distance, p - 1)
        )
        parts = op.Mul(slope, ratio if p == 2 else op.Mul(ratio, sign))
        parts = op.Where(op.Equal(distance if p >= 1 else away, 0), 0, parts)
    return op.ReduceSum(parts, [-2], keepdims=0)


def _power(op: Recorder, x: Value, exponent: float) -> Value:
    # NOTE: Pow's exponent has a type of its own: a bare number would be float32.
    return x if exponent == 1 else op.Pow(x, cast_like(op, exponent, x))
