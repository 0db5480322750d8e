"""Running sums, products and extrema along an axis.

Only the sum has an operator in ONNX. The others double the reach of each element log2(size) times,
which needs a size known at export.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx_ir as ir
import torch

from dort_rewriter.export.converters.opmath import is_bool, is_float, store, widen
from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import converter
from dort_rewriter.graph.values import Value


@converter("aten::cumsum")
def cumsum(op: Recorder, x: Value, dim: int, *, dtype: Any = None) -> Value:
    """cumsum(Tensor self, int dim, *, ScalarType? dtype=None) -> Tensor"""
    x = op.cast(x, op.dtype)
    return op.CumSum(x, op.cast(dim % x.rank, ir.DataType.INT64)) if x.rank else x


def has_known_size(node: torch.fx.Node) -> bool:
    """the size along the axis is not known at export"""
    source, dim = node.args[0], node.args[1] if len(node.args) > 1 else -1
    assert isinstance(source, torch.fx.Node)
    assert isinstance(dim, int)
    value = source.meta["val"]
    return value.ndim == 0 or isinstance(value.shape[dim], int)


Parts = tuple[Value, ...]


def _scan(
    op: Recorder, parts: Parts, axis: int, combine: Callable[[Parts, Parts], Parts]
) -> Parts:
    """The running combination of tensors that belong together (values, positions).

    After each step an element stands for twice as many of its predecessors.
    """
    size, reach = parts[0].dims[axis], 1
    assert isinstance(size, int)
    while reach < size:
        earlier = tuple(op.Slice(p, [0], [size - reach], [axis]) for p in parts)
        later = tuple(op.Slice(p, [reach], [size], [axis]) for p in parts)
        kept = tuple(op.Slice(p, [0], [reach], [axis]) for p in parts)
        combined = combine(earlier, later)
        parts = tuple(op.Concat(k, c, axis=axis) for k, c in zip(kept, combined, strict=True))
        reach *= 2
    return parts


@converter("aten::cumprod", when=has_known_size)
def cumprod(op: Recorder, x: Value, dim: int, *, dtype: Any = None) -> Value:
    """cumprod(Tensor self, int dim, *, ScalarType? dtype=None) -> Tensor"""
    x = op.cast(x, op.dtype)
    if x.rank == 0:
        return x
    wide = widen(op, x)
    (result,) = _scan(op, (wide,), dim % x.rank, lambda a, b: (op.Mul(a[0], b[0]),))
    return store(op, result)


@converter("aten::logcumsumexp", when=has_known_size)
def logcumsumexp(op: Recorder, x: Value, dim: int) -> Value:
    """logcumsumexp(Tensor self, int dim) -> Tensor"""
    if x.rank == 0:
        return x

    def combine(a: Parts, b: Parts) -> Parts:
        larger = op.Max(a[0], b[0])
        # Equal infinities have no difference.
        gap = op.Where(op.Equal(a[0], b[0]), 0.0, op.Abs(op.Sub(a[0], b[0])))
        # NOTE: no Softplus: onnxruntime has none in float64 from opset 19 on.
        return (op.Add(larger, op.Log(op.Add(op.Exp(op.Neg(gap)), 1.0))),)

    # In float64, as torch does: its gradient takes differences of large results.
    (result,) = _scan(op, (op.cast(x, ir.DataType.DOUBLE),), dim % x.rank, combine)
    return store(op, result)


def running_maximum(op: Recorder, x: Value, axis: int) -> Value:
    """The largest element so far, of integers."""
    return _scan(op, (x,), axis, lambda a, b: (op.Max(a[0], b[0]),))[0]


def _extreme(op: Recorder, x: Value, dim: int, onnx_op: str) -> tuple[Value, Value]:
    """The running extremum and its last position; NaN wins over every number."""
    if x.rank == 0:
        return x, op.cast(0, ir.DataType.INT64)
    axis = dim % x.rank
    size = x.dims[axis]
    assert isinstance(size, int)
    values = op.cast(x, ir.DataType.INT32) if is_bool(x) else x
    positions = op.constant(list(range(size)))
    shape = op.vector([size if i == axis else 1 for i in range(x.rank)])
    positions = op.Expand(op.Reshape(positions, shape), op.sizes(x))

    def combine(a: Parts, b: Parts) -> Parts:
        takes_later = op.call(onnx_op, b[0], a[0])
        if is_float(x):
            is_number = op.Not(op.IsNaN(a[0]))
            takes_later = op.Or(op.And(takes_later, is_number), op.IsNaN(b[0]))
        return (op.Where(takes_later, b[0], a[0]), op.Where(takes_later, b[1], a[1]))

    best, where = _scan(op, (values, positions), axis, combine)
    return op.cast(best, op.dtype), where


@converter("aten::cummax", when=has_known_size)
def cummax(op: Recorder, x: Value, dim: int) -> tuple[Value, Value]:
    """cummax(Tensor self, int dim) -> (Tensor values, Tensor indices)"""
    return _extreme(op, x, dim, "GreaterOrEqual")


@converter("aten::cummin", when=has_known_size)
def cummin(op: Recorder, x: Value, dim: int) -> tuple[Value, Value]:
    """cummin(Tensor self, int dim) -> (Tensor values, Tensor indices)"""
    return _extreme(op, x, dim, "LessOrEqual")
