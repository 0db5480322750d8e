"""Elements read by index along one axis."""

from __future__ import annotations

from typing import Any

import torch

from dort_rewriter.export.converters.axes import at_least_1d, flatten
from dort_rewriter.export.converters.bounds import refuse_negative
from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import converter
from dort_rewriter.graph.values import Value


@converter("aten::gather")
def gather(op: Recorder, x: Value, dim: int, index: Value, *, sparse_grad: bool = False) -> Value:
    """gather(Tensor self, int dim, Tensor index, *, bool sparse_grad=False) -> Tensor"""
    if 0 in index.dims:  # its rank may be another than that of the data
        zero = op.constant([0], op.dtype).const_value
        return op.ConstantOfShape(op.sizes(index), value=zero)
    data, places = at_least_1d(op, x), at_least_1d(op, refuse_negative(op, index))
    found = op.GatherElements(data, places, axis=dim % data.rank)
    return op.Squeeze(found, [0]) if index.rank == 0 else found


@converter("aten::index_select")
def index_select(op: Recorder, x: Value, dim: int, index: Value) -> Value:
    """index_select(Tensor self, int dim, Tensor index) -> Tensor"""
    if x.rank == 0:
        return x
    return op.Gather(x, at_least_1d(op, refuse_negative(op, index)), axis=dim % x.rank)


@converter("aten::take")
def take(op: Recorder, x: Value, index: Value) -> Value:
    """take(Tensor self, Tensor index) -> Tensor"""
    return op.Gather(flatten(op, x), index, axis=0)


def _has_axes(node: torch.fx.Node) -> bool:
    """nonzero is taken for tensors with at least one axis"""
    value: torch.Tensor = node.args[0].meta["val"]  # type: ignore[union-attr]
    return value.ndim > 0


@converter("aten::nonzero", when=_has_axes)
def nonzero(op: Recorder, x: Value) -> Value:
    """nonzero(Tensor self) -> Tensor"""
    return op.Transpose(op.NonZero(x), perm=[1, 0])


@converter("aten::nonzero_static")
def nonzero_static(op: Recorder, x: Value, *, size: Any, fill_value: int = -1) -> Value:
    """nonzero_static(Tensor self, *, SymInt size, int fill_value=-1) -> Tensor"""
    if x.rank == 0:
        return op.Expand(op.constant(0, op.dtype), op.vector([size, 0]))
    found = op.Transpose(op.NonZero(x), perm=[1, 0])
    filler = op.Expand(op.constant(fill_value, op.dtype), op.vector([size, x.rank]))
    return op.Slice(op.Concat(found, filler, axis=0), [0], op.vector([size]), [0])
