"""as_strided where it can be told at export which elements it reads.

NOTE: a stride says nothing in ONNX. The strides of the base are those torch computed while tracing;
the base must be dense, so that each place in its memory is one of its elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from dort_rewriter.export.converters.axes import flatten, zeros
from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import Refused, arguments, converter
from dort_rewriter.graph.values import Value

LIMIT = 2**22
"""Elements above which the positions are not stored in the model."""


def _memory_order(base: torch.Tensor) -> list[int] | None:
    """The axes of a dense tensor from the slowest to the fastest, None if it has holes."""
    strides = base.stride()
    order = sorted(range(base.ndim), key=lambda i: (-strides[i], i))
    expected = 1
    for axis in reversed(order):
        if base.shape[axis] != 1 and strides[axis] != expected:
            return None
        expected *= base.shape[axis]
    return order


def _positions(size: Sequence[int], stride: Sequence[int], offset: int) -> np.ndarray[Any, Any]:
    """The place of each element in the memory of the base."""
    places = np.full((), offset, dtype=np.int64)
    for length, step in zip(size, stride, strict=True):
        places = places[..., None] + np.arange(length, dtype=np.int64) * step
    return places


def _is_static(node: torch.fx.Node) -> bool:
    """as_strided is taken with known sizes, on a dense tensor and within it"""
    given = arguments(node.target, node.args, node.kwargs)
    base, size, stride = given.x.meta["val"], given.size, given.stride
    origin = base.storage_offset()
    offset = origin if given.storage_offset is None else given.storage_offset
    numbers = [*base.shape, *base.stride(), origin, *size, *stride, offset]
    if any(not isinstance(n, int) for n in numbers) or _memory_order(base) is None:
        return False
    if 0 in size:
        return True
    if int(np.prod(size)) > LIMIT or any(s < 0 for s in stride):
        return False
    start = offset - origin
    last = start + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
    return bool(start >= 0 and last < base.numel())


def _base(op: Recorder) -> torch.Tensor:
    base: torch.Tensor = op.fx_node.args[0].meta["val"]  # type: ignore[union-attr]
    return base


def _memory(op: Recorder, x: Value, base: torch.Tensor) -> Value:
    """The elements in the order they have in memory."""
    order = _memory_order(base)
    assert order is not None
    return flatten(op, op.Transpose(x, perm=order) if order else x)


@converter("aten::as_strided", "aten::as_strided_copy", when=_is_static)
def as_strided(
    op: Recorder, x: Value, size: Any, stride: Any, storage_offset: Any = None
) -> Value:
    """as_strided(Tensor(a) self, SymInt[] size, SymInt[] stride, SymInt? storage_offset=None) -> Tensor(a)"""
    base = _base(op)
    origin = int(base.storage_offset())
    offset: int = origin if storage_offset is None else storage_offset
    if 0 in size:
        return zeros(op, size)
    if list(size) == list(base.shape) and offset == origin:
        matters = [i for i, n in enumerate(size) if n != 1]
        if all(stride[i] == base.stride(i) for i in matters):
            return x
    memory = _memory(op, x, base)
    return _read(op, memory, size, stride, offset - origin, base)


def _read(
    op: Recorder, memory: Value, size: Any, stride: Any, start: int, base: torch.Tensor
) -> Value:
    """Read by slice, reshape, transpose and expand where that suffices, else by position."""
    axes = [i for i, (n, s) in enumerate(zip(size, stride, strict=True)) if n > 1 and s > 0]
    axes.sort(key=lambda i: -stride[i])
    expected = 1
    for axis in reversed(axes):
        if stride[axis] != expected:
            places = _positions(size, stride, start)
            return op.Gather(memory, op.constant(places), axis=0)
        expected *= size[axis]
    part = memory
    if (start, expected) != (0, base.numel()):
        part = op.Slice(memory, [start], [start + expected], [0])
    kept = sorted(axes)
    part = op.Reshape(part, op.vector([size[i] for i in axes]))
    if kept != axes:
        part = op.Transpose(part, perm=[axes.index(i) for i in kept])
    part = op.Reshape(part, op.vector([n if i in kept else 1 for i, n in enumerate(size)]))
    return op.Expand(part, op.vector(size))


@converter("aten::as_strided_scatter", when=_is_static)
def as_strided_scatter(
    op: Recorder, x: Value, src: Value, size: Any, stride: Any, storage_offset: Any = None
) -> Value:
    """as_strided_scatter(Tensor self, Tensor src, SymInt[] size, SymInt[] stride, SymInt? storage_offset=None) -> Tensor"""
    base = _base(op)
    order = _memory_order(base)
    assert order is not None
    origin = int(base.storage_offset())
    offset: int = origin if storage_offset is None else storage_offset
    if 0 in size:
        return x
    src = op.cast(src, op.dtype)
    places = _positions(size, stride, offset - origin).ravel()
    if len(np.unique(places)) != len(places):
        raise Refused("as_strided_scatter writes to the same element more than once")
    if len(places) == base.numel() and (places == np.arange(len(places))).all():
        memory = flatten(op, src)
    else:
        memory = op.ScatterElements(
            _memory(op, x, base), op.constant(places), flatten(op, src), axis=0
        )
    shaped = op.Reshape(memory, op.vector([base.shape[i] for i in order]))
    if not order:
        return shaped
    return op.Transpose(shaped, perm=[order.index(i) for i in range(len(order))])
