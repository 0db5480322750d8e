"""Losses that torch decomposes, where its kernel says more than the parts do."""

from __future__ import annotations

from typing import Any

from dort_rewriter.export.converters.bounds import refuse_negative
from dort_rewriter.export.converters.opmath import store, widen
from dort_rewriter.export.converters.powers import log1p_curve
from dort_rewriter.export.converters.reductions import mean, total
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
