"""Softmax in all its forms, and their backward."""

from __future__ import annotations

import math
from collections.abc import Callable

import onnx_ir as ir

from dort_rewriter.export.converters.opmath import check_dimension, widen
from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import converter
from dort_rewriter.graph.shapes import may_be_zero
from dort_rewriter.graph.values import Value
from dort_rewriter.graph.writer import hides_all


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


def _gradient(log: bool) -> Callable[..., Value]:
    """The converter of the gradient of a softmax, or of its logarithm."""

    def convert(
        op: Recorder, grad_output: Value, output: Value, dim: int, input_dtype: ir.DataType
    ) -> Value:
        grad, output = widen(op, grad_output), widen(op, output)
        is_last = bool(output.rank) and dim % output.rank == output.rank - 1
        if is_last and op.takes_own(grad, output):
            found = op.own("SoftmaxGrad", grad, output, log=int(log))
        elif log:
            found = grad - op.Exp(output) * _sum_along(op, grad, dim)
        else:
            found = (grad - _sum_along(op, grad * output, dim)) * output
        return op.cast(found, input_dtype)

    return convert


converter("aten::_softmax_backward_data")(_gradient(log=False))
converter("aten::_log_softmax_backward_data")(_gradient(log=True))
