"""Running sums, products and extrema along an axis.

The sum has an operator in ONNX, the product from opset 26 on. The others double the reach of each
element log2(size) times: a Loop does where the size is not known at export.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir
import torch

from dort_rewriter.dtypes import to_torch
from dort_rewriter.export.converters.opmath import is_bool, is_float, store, widen
from dort_rewriter.export.converters.windows import count_up
from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import arguments, converter
from dort_rewriter.export.subgraphs import loop
from dort_rewriter.graph.values import Value


@converter("aten::cumsum")
def cumsum(op: Recorder, x: Value, dim: int, *, dtype: Any = None) -> Value:
    """cumsum(Tensor self, int dim, *, ScalarType? dtype=None) -> Tensor"""
    x = op.cast(x, op.dtype)
    if not x.rank:
        return x
    total = op.CumSum(_summed(op, x), op.cast(dim % x.rank, ir.DataType.INT64))
    return store(op, op.Add(total, 0.0) if is_float(x) else total)  # torch begins with 0.0


def _summed(op: Recorder, x: Value) -> Value:
    """A tensor in the type in which torch makes running sums and products of it."""
    return op.cast(x, ir.DataType.DOUBLE) if x.dtype == ir.DataType.FLOAT else widen(op, x)


def has_known_size(node: torch.fx.Node) -> bool:
    """the size along the axis is not known at export"""
    given = arguments(node.target, node.args, node.kwargs)
    value: torch.Tensor = given.x.meta["val"]
    return value.ndim == 0 or isinstance(value.shape[given.dim], int)


Parts = tuple[Value, ...]
Combine = Callable[[Recorder, Parts, Parts], Parts]
"""Writes the combination of what is earlier with what is later, in the graph it is given."""


def _scan(op: Recorder, parts: Parts, axis: int, combine: Combine) -> Parts:
    """The running combination of tensors that belong together (values, positions).

    After each step an element stands for twice as many of its predecessors.
    """
    size, reach = op.size(parts[0], axis), 1
    if isinstance(size, Value):
        return _loop(op, parts, axis, combine, op.vector([size]))
    while reach < size:
        parts = _double(op, parts, axis, combine, [reach], [size], [size - reach])
        reach *= 2
    return parts


def _double(
    op: Recorder, parts: Parts, axis: int, combine: Combine, reach: Any, size: Any, rest: Any
) -> Parts:
    """Combine each element with the one that is `reach` before it."""
    earlier = tuple(op.Slice(p, [0], rest, [axis]) for p in parts)
    later = tuple(op.Slice(p, reach, size, [axis]) for p in parts)
    kept = tuple(op.Slice(p, [0], reach, [axis]) for p in parts)
    combined = combine(op, earlier, later)
    return tuple(op.Concat(k, c, axis=axis) for k, c in zip(kept, combined, strict=True))


def _loop(op: Recorder, parts: Parts, axis: int, combine: Combine, size: Value) -> Parts:
    """The same for a size that is known at run time."""
    metas = [_meta(op, p) for p in parts]

    def goes_on(recorder: Recorder, reach: Value) -> Value:
        return recorder.Squeeze(recorder.Less(reach, size), [0])

    def step(inner: Recorder, given: Sequence[Value]) -> Sequence[Any]:
        reach, *held = given
        doubled = _double(inner, tuple(held), axis, combine, reach, size, inner.Sub(size, reach))
        further = inner.Add(reach, reach)
        return [goes_on(inner, further), further, *doubled]

    one, reach = op.vector([1]), torch.ones(1, dtype=torch.int64)
    _, *results = loop(op, goes_on(op, one), [one, *parts], [reach, *metas], step)
    return tuple(results)


def _meta(op: Recorder, part: Value) -> torch.Tensor:
    """A fake tensor like a part: of the shape of the results."""
    assert part.dtype is not None
    made = op.result
    first: torch.Tensor = made[0] if isinstance(made, list | tuple) else made
    return first.to(to_torch(part.dtype))


@converter("aten::cumprod")
def cumprod(op: Recorder, x: Value, dim: int, *, dtype: Any = None) -> Value:
    """cumprod(Tensor self, int dim, *, ScalarType? dtype=None) -> Tensor"""
    x = op.cast(x, op.dtype)
    if x.rank == 0:
        return x
    x, axis = _summed(op, x), dim % x.rank
    if op.opset >= 26:
        return store(op, op.CumProd(x, op.cast(axis, ir.DataType.INT64)))
    (result,) = _scan(op, (x,), axis, lambda op, a, b: (op.Mul(a[0], b[0]),))
    return store(op, result)


@converter("aten::logcumsumexp")
def logcumsumexp(op: Recorder, x: Value, dim: int) -> Value:
    """logcumsumexp(Tensor self, int dim) -> Tensor"""
    if x.rank == 0:
        return x

    def combine(op: Recorder, a: Parts, b: Parts) -> Parts:
        larger = op.Max(a[0], b[0])
        # Equal infinities have no difference.
        gap = op.Where(op.Equal(a[0], b[0]), 0.0, op.Abs(op.Sub(a[0], b[0])))
        # NOTE: no Softplus: onnxruntime has none in float64 from opset 19 on.
        return (op.Add(larger, op.Log(op.Add(op.Exp(op.Neg(gap)), 1.0))),)

    # In float64, as torch does: its gradient takes differences of large results.
    (result,) = _scan(op, (op.cast(x, ir.DataType.DOUBLE),), dim % x.rank, combine)
    return store(op, op.Add(result, 0.0))  # no sum of powers is -0.0


def running_maximum(op: Recorder, x: Value, axis: int) -> Value:
    """The largest element so far, of integers."""
    return _scan(op, (x,), axis, lambda op, a, b: (op.Max(a[0], b[0]),))[0]


def _extreme(onnx_op: str) -> Callable[..., tuple[Value, Value]]:
    """The running extremum and its last position; NaN wins over every number."""

    def combine(op: Recorder, a: Parts, b: Parts) -> Parts:
        takes_later = op.call(onnx_op, b[0], a[0])
        if is_float(a[0]):
            is_number = op.Not(op.IsNaN(a[0]))
            takes_later = op.Or(op.And(takes_later, is_number), op.IsNaN(b[0]))
        return (op.Where(takes_later, b[0], a[0]), op.Where(takes_later, b[1], a[1]))

    def convert(op: Recorder, x: Value, dim: int) -> tuple[Value, Value]:
        if x.rank == 0:
            return x, op.cast(0, ir.DataType.INT64)
        axis = dim % x.rank
        values = op.cast(x, ir.DataType.INT32) if is_bool(x) else x
        column = [-1 if i == axis else 1 for i in range(x.rank)]
        positions = op.Reshape(count_up(op, op.size(x, axis)), column)
        positions = op.Expand(positions, op.sizes(x))
        best, where = _scan(op, (values, positions), axis, combine)
        return op.cast(best, op.dtype), where

    return convert


converter("aten::cummax")(_extreme("GreaterOrEqual"))
converter("aten::cummin")(_extreme("LessOrEqual"))
