"""Products of groups of rows, each with a matrix of its own: mixtures of experts."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import Refused, converter
from dort_rewriter.graph.values import Value


@converter("aten::_grouped_mm")
def grouped_mm(
    op: Recorder,
    x: Value,
    mat2: Value,
    offs: Value | None = None,
    bias: Value | None = None,
    out_dtype: Any = None,
) -> Value:
    """_grouped_mm(Tensor self, Tensor mat2, Tensor? offs=None, Tensor? bias=None, ScalarType? out_dtype=None) -> Tensor"""
    if offs is None:
        product = op.MatMul(x, mat2)
    else:
        product = _product(op, x, mat2, op.Cast(offs, to=ir.DataType.INT64))
    return op.cast(product if bias is None else op.Add(product, bias), op.dtype)


@converter("transformers::grouped_mm_fallback")
def grouped_mm_fallback(op: Recorder, input: Value, weight: Value, offs: Value) -> Value:
    """grouped_mm_fallback(Tensor input, Tensor weight, Tensor offs) -> Tensor

    The operator of transformers with which mixtures of experts train where torch's has no kernel.
    """
    return op.cast(_product(op, input, weight, op.Cast(offs, to=ir.DataType.INT64)), op.dtype)


def _product(op: Recorder, x: Value, mat2: Value, ends: Value) -> Value:
    groups = ends.dims[0]
    if not isinstance(groups, int):
        raise Refused("the number of groups is not known")
    if x.rank == 2 and mat2.rank == 3:  # rows in groups
        parts = [op.MatMul(_group(op, x, ends, i, 0), _matrix(op, mat2, i)) for i in range(groups)]
        return op.Concat(*parts, _rest(op, x, ends, 0, op.size(mat2, 2)), axis=0)
    if x.rank == 3 and mat2.rank == 2:  # columns in groups
        parts = [op.MatMul(_matrix(op, x, i), _group(op, mat2, ends, i, 1)) for i in range(groups)]
        return op.Concat(*parts, _rest(op, mat2, ends, 1, op.size(x, 1)), axis=1)
    if x.rank == 2 and mat2.rank == 2:  # what is summed over in groups
        parts = [_sum(op, x, mat2, ends, i) for i in range(groups)]
        return op.Concat(*(op.Unsqueeze(part, [0]) for part in parts), axis=0)
    raise Refused(f"groups in matrices of ranks {x.rank} and {mat2.rank}")


def _sum(op: Recorder, x: Value, mat2: Value, ends: Value, index: int) -> Value:
    product = op.MatMul(_group(op, x, ends, index, 1), _group(op, mat2, ends, index, 0))
    # NOTE: onnxruntime 1.19 leaves a product over nothing as its memory was.
    is_empty = op.Equal(_start(op, ends, index), op.Slice(ends, [index], [index + 1], [0]))
    return op.Where(is_empty, op.constant(0, product.dtype), product)


def _matrix(op: Recorder, x: Value, index: int) -> Value:
    return op.Squeeze(op.Slice(x, [index], [index + 1], [0]), [0])


def _group(op: Recorder, x: Value, ends: Value, index: int, axis: int) -> Value:
    end = op.Slice(ends, [index], [index + 1], [0])
    return op.Slice(x, _start(op, ends, index), end, [axis])


def _start(op: Recorder, ends: Value, index: int) -> Any:
    return op.Slice(ends, [index - 1], [index], [0]) if index else op.constant([0])


def _rest(op: Recorder, x: Value, ends: Value, axis: int, across: Any) -> Value:
    """Zeros for what no group has, behind the last one."""
    count = op.Sub(op.Shape(x, start=axis, end=axis + 1), op.Slice(ends, [-1], [2**62], [0]))
    return op.Expand(
        op.cast(0, op.dtype), op.vector([count, across] if axis == 0 else [across, count])
    )
