"""Look-ups of rows in a table, and their backward."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from dort_rewriter.export.converters.bounds import refuse_negative
from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import converter
from dort_rewriter.graph.values import Value


@converter("aten::embedding")
def embedding(
    op: Recorder,
    weight: Value,
    indices: Value,
    padding_idx: Any = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Value:
    """embedding(Tensor weight, Tensor indices, SymInt padding_idx=-1, bool scale_grad_by_freq=False, bool sparse=False) -> Tensor"""
    return op.Gather(weight, refuse_negative(op, indices), axis=0)


@converter("aten::embedding_dense_backward")
def embedding_dense_backward(
    op: Recorder,
    grad_output: Value,
    indices: Value,
    num_weights: Any,
    padding_idx: Any,
    scale_grad_by_freq: bool,
) -> Value:
    """embedding_dense_backward(Tensor grad_output, Tensor indices, SymInt num_weights, SymInt padding_idx, bool scale_grad_by_freq) -> Tensor"""
    width = op.size(grad_output, grad_output.rank - 1)
    rows = op.Reshape(op.cast(indices, ir.DataType.INT64), op.vector([-1, 1]))
    grads = op.Reshape(grad_output, op.vector([-1, width]))
    if scale_grad_by_freq:
        counts = op.Gather(_count_rows(op, op.Squeeze(rows, [1]), num_weights), rows)
        grads = grads / op.cast(counts, op.dtype)
    if isinstance(padding_idx, ir.Value) or padding_idx >= 0:
        grads = op.Where(op.Equal(rows, padding_idx), op.constant(0.0, grads.dtype), grads)
    zeros = op.ConstantOfShape(
        op.vector([num_weights, width]), value=ir.tensor([0], dtype=grads.dtype)
    )
    return op.ScatterND(zeros, rows, grads, reduction="add")


def _count_rows(op: Recorder, indices: Value, num_weights: Any) -> Value:
    """How often each row is looked up by int64 indices of rank 1."""
    none = ir.tensor([0], dtype=ir.DataType.INT64)
    zeros = op.ConstantOfShape(op.vector([num_weights]), value=none)
    ones = op.Expand(op.constant(1), op.Shape(indices))
    return op.ScatterElements(zeros, indices, ones, axis=0, reduction="add")
