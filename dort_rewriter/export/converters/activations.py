"""Activations of one argument, and gated units, each beside its gradient."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir

from dort_rewriter.export.converters.comparison import between, maximum
from dort_rewriter.export.converters.opmath import (
    cast_like,
    is_float,
    like,
    store,
    wide_converter,
    widen,
)
from dort_rewriter.export.converters.powers import logistic, softplus_curve
from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import Arguments, Refused, by_name, converter
from dort_rewriter.graph.values import Value


def is_exact_attribute(x: Value, *numbers: Any) -> bool:
    """Whether numbers may be ONNX attributes, which are float32, and lose nothing."""
    return x.dtype != ir.DataType.DOUBLE and not any(isinstance(n, Value) for n in numbers)


_HAS_RELU = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


@converter("aten::relu")
def relu(op: Recorder, x: Value) -> Value:
    """relu(Tensor self) -> Tensor"""
    # NOTE: onnxruntime 1.19 builds no session where Clip follows a Relu of other types.
    if x.dtype in _HAS_RELU:
        return op.Relu(x)
    return op.Where(op.Less(x, 0), 0, x) if is_float(x) else maximum(op, x, like(op, 0, x))


@converter("aten::threshold_backward")
def threshold_backward(op: Recorder, grad_output: Value, x: Value, threshold: Any) -> Value:
    """threshold_backward(Tensor grad_output, Tensor self, Scalar threshold) -> Tensor"""
    return op.Where(op.LessOrEqual(x, like(op, threshold, x)), 0, grad_output)


@converter("aten::threshold")
def threshold(op: Recorder, x: Value, threshold: Any, value: Any) -> Value:
    """threshold(Tensor self, Scalar threshold, Scalar value) -> Tensor"""
    return op.Where(op.LessOrEqual(x, like(op, threshold, x)), like(op, value, x), x)


@converter("aten::leaky_relu")
def leaky_relu(op: Recorder, x: Value, negative_slope: Any = 0.01) -> Value:
    """leaky_relu(Tensor self, Scalar negative_slope=0.01) -> Tensor"""
    if is_exact_attribute(x, negative_slope):
        return op.LeakyRelu(x, alpha=float(negative_slope))
    return op.Where(op.Greater(x, 0), x, op.Mul(x, like(op, negative_slope, x)))


@converter("aten::leaky_relu_backward")
def leaky_relu_backward(
    op: Recorder, grad_output: Value, x: Value, negative_slope: Any, self_is_result: bool
) -> Value:
    """leaky_relu_backward(Tensor grad_output, Tensor self, Scalar negative_slope, bool self_is_result) -> Tensor"""
    slope = like(op, negative_slope, grad_output)
    return op.Where(op.Greater(x, 0), grad_output, op.Mul(grad_output, slope))


@converter("aten::gelu")
def gelu(op: Recorder, x: Value, *, approximate: str = "none") -> Value:
    """gelu(Tensor self, *, str approximate='none') -> Tensor"""
    if op.opset >= 20:
        return op.Gelu(x, approximate=approximate)
    wide = widen(op, x)
    gate = op.Tanh(_gelu_argument(op, wide)) if approximate == "tanh" else _erf(op, wide)
    return store(op, op.Mul(op.Mul(wide, 0.5), op.Add(gate, 1.0)))


def _erf(op: Recorder, x: Value) -> Value:
    return op.Erf(op.Mul(x, math.sqrt(0.5)))


_GELU_SCALE = math.sqrt(2 / math.pi)
_GELU_CUBE = 0.044715


def _gelu_argument(op: Recorder, x: Value) -> Value:
    cube = op.Mul(op.Mul(x, x), x)
    return op.Mul(op.Add(x, op.Mul(cube, _GELU_CUBE)), _GELU_SCALE)


@wide_converter("aten::gelu_backward")
def gelu_backward(
    op: Recorder, grad_output: Value, x: Value, *, approximate: str = "none"
) -> Value:
    """gelu_backward(Tensor grad_output, Tensor self, *, str approximate='none') -> Tensor"""
    if op.takes_own(grad_output, x):
        return op.own("GeluGrad", grad_output, x, tanh=int(approximate == "tanh"))
    if approximate == "tanh":
        gate = op.Tanh(_gelu_argument(op, x))
        inner = op.Add(op.Mul(op.Mul(x, x), 3 * _GELU_CUBE * _GELU_SCALE), _GELU_SCALE)
        bell = op.Mul(op.Mul(op.Sub(1.0, op.Mul(gate, gate)), inner), 0.5)
    else:
        gate = _erf(op, x)
        bell = op.Mul(op.Exp(op.Mul(op.Mul(x, x), -0.5)), 1 / math.sqrt(2 * math.pi))
    share = op.Mul(op.Add(gate, 1.0), 0.5)
    return op.Mul(grad_output, op.Add(share, op.Mul(x, bell)))


@wide_converter("aten::silu")
def silu(op: Recorder, x: Value) -> Value:
    """silu(Tensor self) -> Tensor"""
    return op.Mul(x, logistic(op, x))


@wide_converter("aten::silu_backward")
def silu_backward(op: Recorder, grad_output: Value, x: Value) -> Value:
    """silu_backward(Tensor grad_output, Tensor self) -> Tensor"""
    gate = logistic(op, x)
    slope = op.Add(op.Mul(x, op.Sub(1.0, gate)), 1.0)
    return op.Mul(op.Mul(grad_output, gate), slope)


@wide_converter("aten::mish")
def mish(op: Recorder, x: Value) -> Value:
    """mish(Tensor self) -> Tensor"""
    return op.Mul(x, op.Tanh(softplus_curve(op, x)))


@wide_converter("aten::mish_backward")
def mish_backward(op: Recorder, grad_output: Value, x: Value) -> Value:
    """mish_backward(Tensor grad_output, Tensor self) -> Tensor"""
    gate = op.Tanh(softplus_curve(op, x))
    curve = op.Mul(op.Mul(x, logistic(op, x)), op.Sub(1.0, op.Mul(gate, gate)))
    return op.Mul(grad_output, op.Add(gate, curve))


@wide_converter("aten::sigmoid_backward")
def sigmoid_backward(op: Recorder, grad_output: Value, output: Value) -> Value:
    """sigmoid_backward(Tensor grad_output, Tensor output) -> Tensor"""
    return op.Mul(op.Mul(grad_output, op.Sub(1.0, output)), output)


@wide_converter("aten::tanh_backward")
def tanh_backward(op: Recorder, grad_output: Value, output: Value) -> Value:
    """tanh_backward(Tensor grad_output, Tensor output) -> Tensor"""
    return op.Mul(grad_output, op.Sub(1.0, op.Mul(output, output)))


@converter("aten::log_sigmoid_forward")
def log_sigmoid_forward(op: Recorder, x: Value) -> tuple[Value, Value]:
    """log_sigmoid_forward(Tensor self) -> (Tensor output, Tensor buffer)"""
    wide = widen(op, x)
    output = store(op, op.Sub(0, softplus_curve(op, op.Neg(wide))))  # 0.0 far above zero
    if op.result[1].ndim != op.result[0].ndim:  # other devices keep nothing for the gradient
        return output, op.constant([], op.dtype)
    return output, store(op, op.Exp(op.Neg(op.Abs(wide))))


@converter("aten::log_sigmoid_backward")
def log_sigmoid_backward(op: Recorder, grad_output: Value, x: Value, buffer: Value) -> Value:
    """log_sigmoid_backward(Tensor grad_output, Tensor self, Tensor buffer) -> Tensor"""
    grad, x = widen(op, grad_output), widen(op, x)
    return store(op, op.Mul(grad, logistic(op, op.Neg(x))))


@wide_converter("aten::softplus")
def softplus(op: Recorder, x: Value, beta: Any = 1, threshold: Any = 20) -> Value:
    """softplus(Tensor self, Scalar beta=1, Scalar threshold=20) -> Tensor"""
    beta, threshold = like(op, beta, x), like(op, threshold, x)
    scaled = op.Mul(x, beta)
    curve = op.Div(softplus_curve(op, scaled), beta)
    return op.Where(op.Greater(scaled, threshold), x, curve)


@wide_converter("aten::softplus_backward")
def softplus_backward(
    op: Recorder, grad_output: Value, x: Value, beta: Any, threshold: Any
) -> Value:
    """softplus_backward(Tensor grad_output, Tensor self, Scalar beta, Scalar threshold) -> Tensor"""
    beta, threshold = like(op, beta, x), like(op, threshold, x)
    scaled = op.Mul(x, beta)
    curve = op.Mul(grad_output, logistic(op, scaled))
    return op.Where(op.Greater(scaled, threshold), grad_output, curve)


@converter("aten::elu")
def elu(op: Recorder, x: Value, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> Value:
    """elu(Tensor self, Scalar alpha=1, Scalar scale=1, Scalar input_scale=1) -> Tensor"""
    if is_exact_attribute(x, alpha, scale, input_scale) and scale == input_scale == 1:
        return op.Elu(x, alpha=float(alpha))
    wide = widen(op, x)
    alpha, scale, input_scale = (like(op, v, wide) for v in (alpha, scale, input_scale))
    curve = op.Mul(op.Elu(op.Mul(wide, input_scale)), alpha)
    return store(op, op.Mul(op.Where(op.Greater(wide, 0), wide, curve), scale))


@converter("aten::elu_backward")
@by_name
def elu_backward(op: Recorder, given: Arguments) -> Value:
    """elu_backward(Tensor grad_output, Scalar alpha, Scalar scale, Scalar input_scale, bool is_result, Tensor self_or_result) -> Tensor"""
    grad, y = widen(op, given.grad_output), widen(op, given.self_or_result)
    alpha, scale, input_scale = (
        like(op, v, y) for v in (given.alpha, given.scale, given.input_scale)
    )
    coefficient = op.Mul(cast_like(op, alpha, y), scale)
    if given.is_result:
        curve = op.Add(y, coefficient)
    else:
        curve = op.Mul(op.Exp(op.Mul(y, input_scale)), coefficient)
    slope = op.Where(op.Greater(y, 0), cast_like(op, scale, y), op.Mul(curve, input_scale))
    return store(op, op.Mul(grad, slope))


@wide_converter("aten::celu")
def celu(op: Recorder, x: Value, alpha: Any = 1.0) -> Value:
    """celu(Tensor self, Scalar alpha=1.0) -> Tensor"""
    if isinstance(alpha, int | float) and alpha == 0:
        raise Refused("alpha is zero, which torch refuses")
    alpha = like(op, alpha, x)
    ratio = op.Div(x, alpha)
    growth = op.Elu(ratio)
    if isinstance(alpha, Value) or alpha < 0:  # the ratio may be positive below zero
        growth = op.Where(op.Greater(ratio, 0), op.Sub(op.Exp(ratio), 1), growth)
    curve = op.Mul(growth, alpha)
    return op.Where(op.Greater(x, 0), x, curve)


# -- straight lines, and gated units -----------------------------------------------------------

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
