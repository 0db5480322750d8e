"""Softmax in all its forms, and their backward."""

from __future__ import annotations

import math

import onnx_ir as ir

from dort_rewriter.export.converters import own_kernels
from dort_rewriter.export.converters.opmath import check_dimension, widen
from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import converter
from dort_rewriter.graph.hidden_rows import hides_all
from dort_rewriter.graph.shapes import may_be_zero
from dort_rewriter.graph.values import Value


def _along(op: Recorder, onnx_op: str, x: Value, dim: int) -> Value:
    """Apply a normalization along a dimension; ONNX has none for a rank-0 tensor."""
    check_dimension(x, dim)
    if x.rank:
        return op.call(onnx_op, x, axis=dim % x.rank)
    return op.Reshape(op.call(onnx_op, op.Reshape(x, [1]), axis=0), op.vector([]))


def _sum_along(op: Recorder, x: Value, dim: int) -> Value:
    return op.ReduceSum(x, [dim % x.rank], keepdims=1) if x.rank else x


@converter("aten::_softmax")
def softmax(op: Recorder, x: Value, dim: int, half_to_float: bool) -> Value:
    """_softmax(Tensor self, int dim, bool half_to_float) -> Tensor"""
    return _along(op, "Softmax", op.cast(x, op.dtype), dim)


@converter("aten::_log_softmax")
def log_softmax(op: Recorder, x: Value, dim: int, half_to_float: bool) -> Value:
    """_log_softmax(Tensor self, int dim, bool half_to_float) -> Tensor"""
    x = op.cast(x, op.dtype)
    if x.dtype != ir.DataType.DOUBLE or not x.rank or any(may_be_zero(d) for d in x.dims):
        return _along(op, "LogSoftmax", x, dim)
    # NOTE: ORT's kernel for float64 loses a NaN and infinities of a row.
    check_dimension(x, dim)
    axes = [dim % x.rank]
    centred = op.Sub(x, op.ReduceMax(x, axes, keepdims=1))
    return op.Sub(centred, op.Log(op.ReduceSum(op.Exp(centred), axes, keepdims=1)))


@converter("aten::_safe_softmax")
def safe_softmax(op: Recorder, x: Value, dim: int, dtype: ir.DataType | None = None) -> Value:
    """_safe_softmax(Tensor self, int dim, ScalarType? dtype=None) -> Tensor"""
    x = op.cast(x, op.dtype)
    if not x.rank:
        return op.Where(op.Equal(x, -math.inf), 0.0, _along(op, "Softmax", x, dim))
    return op.Where(hides_all(op, x, dim % x.rank), 0.0, _along(op, "Softmax", x, dim))


def _is_own(op: Recorder, grad: Value, output: Value, dim: int) -> bool:
    """Whether our kernel takes a gradient: that along the last axis."""
    return (
        bool(output.rank) and dim % output.rank == output.rank - 1 and op.takes_own(grad, output)
    )


@converter("aten::_softmax_backward_data")
def softmax_backward(
    op: Recorder, grad_output: Value, output: Value, dim: int, input_dtype: ir.DataType
) -> Value:
    """_softmax_backward_data(Tensor grad_output, Tensor output, int dim, ScalarType input_dtype) -> Tensor"""
    grad_output, output = widen(op, grad_output), widen(op, output)
    if _is_own(op, grad_output, output, dim):
        gradient = own_kernels.softmax_gradient(op, grad_output, output, log=False)
        return op.cast(gradient, input_dtype)
    weighted = grad_output * output
    total = _sum_along(op, weighted, dim)
    return op.cast((grad_output - total) * output, input_dtype)


@converter("aten::_log_softmax_backward_data")
def log_softmax_backward(
    op: Recorder, grad_output: Value, output: Value, dim: int, input_dtype: ir.DataType
) -> Value:
    """_log_softmax_backward_data(Tensor grad_output, Tensor output, int dim, ScalarType input_dtype) -> Tensor"""
    grad_output, output = widen(op, grad_output), widen(op, output)
    if _is_own(op, grad_output, output, dim):
        gradient = own_kernels.softmax_gradient(op, grad_output, output, log=True)
        return op.cast(gradient, input_dtype)
    total = _sum_along(op, grad_output, dim)
    return op.cast(grad_output - op.Exp(output) * total, input_dtype)
