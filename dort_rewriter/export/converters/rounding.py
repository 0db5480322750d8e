"""Rounding to integers, or to a number of decimals. Integers are left as they are."""

from __future__ import annotations

from dort_rewriter.export.converters.opmath import is_float, store, widen
from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import converter
from dort_rewriter.graph.values import Value
from dort_rewriter.graph.writer import signed_one

__all__ = ["truncate"]


def truncate(op: Recorder, x: Value) -> Value:
    """Floating-point numbers rounded towards zero, which keeps the sign."""
    return op.Mul(op.Floor(op.Abs(x)), signed_one(op, x))


@converter("aten::ceil")
def ceil(op: Recorder, x: Value) -> Value:
    """ceil(Tensor self) -> Tensor"""
    return op.Ceil(x) if is_float(x) else x


@converter("aten::floor")
def floor(op: Recorder, x: Value) -> Value:
    """floor(Tensor self) -> Tensor"""
    return op.Floor(x) if is_float(x) else x


@converter("aten::trunc")
def trunc(op: Recorder, x: Value) -> Value:
    """trunc(Tensor self) -> Tensor"""
    return truncate(op, x) if is_float(x) else x


@converter("aten::frac")
def frac(op: Recorder, x: Value) -> Value:
    """frac(Tensor self) -> Tensor"""
    return op.Sub(x, truncate(op, x))


@converter("aten::round")
def round_(op: Recorder, x: Value) -> Value:
    """round(Tensor self) -> Tensor"""
    return op.Round(x) if is_float(x) else x


@converter("aten::round.decimals")
def round_decimals(op: Recorder, x: Value, *, decimals: int) -> Value:
    """round.decimals(Tensor self, *, int decimals) -> Tensor"""
    if not is_float(x):
        return x
    if decimals == 0:
        return op.Round(x)
    x = widen(op, x)
    scale = float(10 ** abs(decimals))
    if decimals > 0:
        return store(op, op.Div(op.Round(op.Mul(x, scale)), scale))
    return store(op, op.Mul(op.Round(op.Div(x, scale)), scale))
