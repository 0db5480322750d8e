"""Losses that torch decomposes, where its kernel says more than the parts do."""

from __future__ import annotations

from dort_rewriter.export.converters.opmath import store, widen
from dort_rewriter.export.converters.powers import log1p_curve
from dort_rewriter.export.converters.reductions import mean, total
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
