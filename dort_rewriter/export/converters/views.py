"""Operators that only look at the same elements in another shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dort_rewriter.export.converters.axes import reshape, result_dims, size_names
from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import converter
from dort_rewriter.graph.values import Value


@converter("aten::view", "aten::_unsafe_view", "aten::view_copy", "aten::_reshape_copy")
@converter("aten::_reshape_alias", "aten::_reshape_alias_copy")
def view(op: Recorder, x: Value, size: Sequence[Any], stride: Any = None) -> Value:
    """view(Tensor(a) self, SymInt[] size) -> Tensor(a)"""
    return reshape(op, x, result_dims(op), size)


@converter("aten::t", "aten::t_copy")
def t(op: Recorder, x: Value) -> Value:
    """t(Tensor(a) self) -> Tensor(a)"""
    return op.Transpose(x, perm=[1, 0]) if x.rank == 2 else x


@converter("aten::transpose.int", "aten::transpose_copy.int")
def transpose(op: Recorder, x: Value, dim0: int, dim1: int) -> Value:
    """transpose.int(Tensor(a) self, int dim0, int dim1) -> Tensor(a)"""
    if x.rank == 0:
        return x
    perm = list(range(x.rank))
    perm[dim0], perm[dim1] = perm[dim1], perm[dim0]
    return op.Transpose(x, perm=perm)


@converter("aten::permute", "aten::permute_copy")
def permute(op: Recorder, x: Value, dims: Sequence[int]) -> Value:
    """permute(Tensor(a) self, int[] dims) -> Tensor(a)"""
    return op.Transpose(x, perm=[d % x.rank for d in dims]) if x.rank else x


@converter("aten::expand", "aten::expand_copy")
def expand(op: Recorder, x: Value, size: Sequence[Any], *, implicit: bool = False) -> Value:
    """expand(Tensor(a) self, SymInt[] size, *, bool implicit=False) -> Tensor(a)"""
    dims = result_dims(op)
    have = size_names(x.dims)
    if have == dims:
        return x
    new = len(dims) - len(have)
    target: list[Any] = []
    for i, (d, s) in enumerate(zip(dims, size, strict=True)):
        stays = i >= new and have[i - new] == d
        target.append(1 if stays else d if isinstance(d, int) else s)
    return op.Expand(x, op.vector([1 if isinstance(s, int) and s == -1 else s for s in target]))


@converter("aten::squeeze", "aten::squeeze.dim", "aten::squeeze.dims")
@converter("aten::squeeze_copy", "aten::squeeze_copy.dim", "aten::squeeze_copy.dims")
def squeeze(op: Recorder, x: Value, dim: int | Sequence[int] | None = None) -> Value:
    """squeeze.dims(Tensor(a) self, int[] dim) -> Tensor(a)"""
    axes = range(x.rank) if dim is None else [dim] if isinstance(dim, int) else dim
    gone = sorted({a % x.rank for a in axes if x.dims[a] == 1}) if x.rank else []
    return op.Squeeze(x, gone) if gone else x


@converter("aten::unsqueeze", "aten::unsqueeze_copy")
def unsqueeze(op: Recorder, x: Value, dim: int) -> Value:
    """unsqueeze(Tensor(a) self, int dim) -> Tensor(a)"""
    return op.Unsqueeze(x, [dim % (x.rank + 1)])


@converter("aten::unfold", "aten::unfold_copy")
def unfold(op: Recorder, x: Value, dimension: int, size: Any, step: Any) -> Value:
    """unfold(Tensor(a) self, int dimension, int size, int step) -> Tensor(a)"""
    if x.rank == 0:
        return op.Reshape(x, [size]) if size else op.Reshape(op.Expand(x, [0]), [0])
    axis = dimension % x.rank
    length = op.size(x, axis)
    within = np.arange(size, dtype=np.int64)
    if isinstance(length, int):
        starts = np.arange((length - size) // step + 1, dtype=np.int64) * step
        windows: Value = op.constant(starts[:, None] + within)
    else:
        count = op.Add(op.Div(op.Sub(length, size), step), 1)
        first = op.Mul(op.Range(0, op.Squeeze(count, [0]), 1), step)
        windows = op.Add(op.Unsqueeze(first, [1]), op.constant(within))
    found = op.Gather(x, windows, axis=axis)
    last = axis + 1
    return op.Transpose(found, perm=[i for i in range(found.rank) if i != last] + [last])
