"""One tensor into several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import converter
from dort_rewriter.graph.values import Value


@converter(
    "aten::split_with_sizes", "aten::split_with_sizes_copy", "aten::unsafe_split_with_sizes"
)
def split_with_sizes(
    op: Recorder, x: Value, split_sizes: Sequence[Any], dim: int = 0
) -> Sequence[Value]:
    """split_with_sizes(Tensor(a -> *) self, SymInt[] split_sizes, int dim=0) -> Tensor(a)[]"""
    return _split(op, x, split_sizes, dim % x.rank)


@converter("aten::split.Tensor", "aten::split_copy.Tensor", "aten::unsafe_split.Tensor")
def split(op: Recorder, x: Value, split_size: Any, dim: int = 0) -> Sequence[Value]:
    """split.Tensor(Tensor(a -> *) self, SymInt split_size, int dim=0) -> Tensor(a)[]"""
    axis = dim % x.rank
    full = len(op.result) - 1
    size = op.size(x, axis)
    if isinstance(split_size, int):
        done = op.constant([full * split_size])
    else:
        done = op.Mul(op.vector([split_size]), [full])
    rest: int | Value = (
        size - full * split_size
        if isinstance(size, int) and isinstance(split_size, int)
        else op.Sub(op.vector([size]), done)
    )
    return _split(op, x, [*([split_size] * full), rest], axis)


@converter("aten::unbind.int", "aten::unbind_copy.int")
def unbind(op: Recorder, x: Value, dim: int = 0) -> Sequence[Value]:
    """unbind.int(Tensor(a -> *) self, int dim=0) -> Tensor(a)[]"""
    axis = dim % x.rank
    return [op.Squeeze(part, [axis]) for part in _split(op, x, [1] * len(op.result), axis)]


def _split(op: Recorder, x: Value, sizes: Sequence[Any], axis: int) -> Sequence[Value]:
    if not sizes:
        return []
    if len(sizes) == 1:
        return [x]
    return op.call("Split", x, op.vector(sizes), axis=axis, outputs=len(sizes))
