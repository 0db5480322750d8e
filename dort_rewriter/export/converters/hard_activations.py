"""Activations made of straight lines, gated units, and their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np

from dort_rewriter.export.converters.comparison import between
from dort_rewriter.export.converters.opmath import cast_like, like, wide_converter
from dort_rewriter.export.converters.powers import logistic
from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import converter
from dort_rewriter.graph.values import Value

_SIXTH = float(np.float32(1 / 6))
"""As torch's kernel has it, in float64 too."""


@converter("aten::hardtanh")
def hardtanh(op: Recorder, x: Value, min_val: Any = -1, max_val: Any = 1) -> Value:
    """hardtanh(Tensor self, Scalar min_val=-1, Scalar max_val=1) -> Tensor"""
    return between(op, x, min_val, max_val)


@converter("aten::hardtanh_backward")
def hardtanh_backward(
    op: Recorder, grad_output: Value, x: Value, min_val: Any, max_val: Any
) -> Value:
    """hardtanh_backward(Tensor grad_output, Tensor self, Scalar min_val, Scalar max_val) -> Tensor"""
    is_flat = op.Or(
        op.LessOrEqual(x, like(op, min_val, x)), op.GreaterOrEqual(x, like(op, max_val, x))
    )
    return op.Where(is_flat, 0, grad_output)


def _hard_gate(op: Recorder, x: Value) -> Value:
    """clamp(x + 3, 0, 6) / 6."""
    return op.Div(op.Clip(op.Add(x, 3.0), 0.0, 6.0), 6.0)


@wide_converter("aten::hardsigmoid")
def hardsigmoid(op: Recorder, x: Value) -> Value:
    """hardsigmoid(Tensor self) -> Tensor"""
    return _hard_gate(op, x)


@converter("aten::hardsigmoid_backward")
def hardsigmoid_backward(op: Recorder, grad_output: Value, x: Value) -> Value:
    """hardsigmoid_backward(Tensor grad_output, Tensor self) -> Tensor"""
    is_steep = op.Less(op.Abs(x), 3.0)
    return op.Where(is_steep, op.Mul(grad_output, _SIXTH), 0.0)


@wide_converter("aten::hardswish")
def hardswish(op: Recorder, x: Value) -> Value:
    """hardswish(Tensor self) -> Tensor"""
    return op.Mul(x, _hard_gate(op, x))


@wide_converter("aten::softshrink")
def softshrink(op: Recorder, x: Value, lambd: Any = 0.5) -> Value:
    """softshrink(Tensor self, Scalar lambd=0.5) -> Tensor"""
    lambd = cast_like(op, lambd, x)
    return op.Sub(x, op.Clip(x, op.Neg(lambd), lambd))


@converter("aten::softshrink_backward")
def softshrink_backward(op: Recorder, grad_output: Value, x: Value, lambd: Any) -> Value:
    """softshrink_backward(Tensor grad_output, Tensor self, Scalar lambd) -> Tensor"""
    return op.Where(op.LessOrEqual(op.Abs(x), like(op, lambd, x)), 0, grad_output)


@converter("aten::hardshrink_backward")
def hardshrink_backward(op: Recorder, grad_out: Value, x: Value, lambd: Any) -> Value:
    """hardshrink_backward(Tensor grad_out, Tensor self, Scalar lambd) -> Tensor"""
    return softshrink_backward(op, grad_out, x, lambd)


@wide_converter("aten::glu")
def glu(op: Recorder, x: Value, dim: int = -1) -> Value:
    """glu(Tensor self, int dim=-1) -> Tensor"""
    a, b = op.Split(x, axis=dim % x.rank, num_outputs=2)
    return op.Mul(a, logistic(op, b))


@wide_converter("aten::glu_backward")
def glu_backward(op: Recorder, grad_output: Value, x: Value, dim: int) -> Value:
    """glu_backward(Tensor grad_output, Tensor self, int dim) -> Tensor"""
    axis = dim % x.rank
    a, b = op.Split(x, axis=axis, num_outputs=2)
    gate = logistic(op, b)
    to_a = op.Mul(grad_output, gate)
    to_b = op.Mul(op.Mul(to_a, op.Sub(1.0, gate)), a)
    return op.Concat(to_a, to_b, axis=axis)
