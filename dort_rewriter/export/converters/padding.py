"""Padding with a constant, a reflection or the edge, and its gradient; a negative amount crops."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import onnx_ir as ir

from dort_rewriter.export.converters.axes import END, pad_axes, pad_whole
from dort_rewriter.export.converters.opmath import store, widen
from dort_rewriter.export.converters.windows import Size
from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import Refused, converter
from dort_rewriter.graph.values import Value


@converter("aten::constant_pad_nd")
def constant_pad_nd(op: Recorder, x: Value, pad: Sequence[Any], value: Any = 0) -> Value:
    """constant_pad_nd(Tensor self, SymInt[] pad, Scalar value=0) -> Tensor"""
    if not pad:
        return x
    first = x.rank - len(pad) // 2
    begins, ends = list(pad[::2])[::-1], list(pad[1::2])[::-1]
    pads = [*[0] * first, *begins, *[0] * first, *ends]
    filler = op.cast(value, op.dtype) if isinstance(value, Value) else value
    if x.dtype == ir.DataType.BOOL:  # onnxruntime 1.19 has no kernel for it
        wide = op.cast(x, ir.DataType.INT32)
        padded = pad_whole(op, wide, pads, op.cast(filler, ir.DataType.INT32))
        return op.cast(padded, ir.DataType.BOOL)
    return pad_whole(op, x, pads, filler)


# -- reflection and replication ----------------------------------------------------------------


def _amounts(padding: Sequence[Any]) -> list[tuple[int, int]]:
    """How much to pad each of the last axes, in front and behind."""
    if not all(isinstance(p, int) for p in padding):
        raise Refused("the padding is symbolic")
    return list(zip(padding[::2], padding[1::2], strict=True))[::-1]


def _extend(op: Recorder, x: Value, padding: Sequence[Any], mode: str) -> Value:
    amounts = _amounts(padding)
    axes = range(x.rank - len(amounts), x.rank)
    befores, afters = zip(*amounts, strict=True)
    pads = [max(0, p) for p in (*befores, *afters)]
    if any(pads):
        x = pad_axes(op, x, pads, axes, mode=mode)
    crops = [min(0, p) for p in (*befores, *afters)]
    return pad_axes(op, x, crops, axes) if any(crops) else x


def _reflect_back(
    op: Recorder, grad: Value, size: Size, before: int, after: int, axis: int
) -> Iterator[Value]:
    """Yield what both margins add: to the elements next to the first and to the last."""
    if before > 0:
        image = op.Slice(grad, [before - 1], [-END], [axis], [-1])
        yield pad_axes(op, image, [1, size - (1 + before)], [axis])
    if after > 0:
        image = op.Slice(grad, [-1], [-after - 1], [axis], [-1])
        yield pad_axes(op, image, [size - (1 + after), 1], [axis])


def _replicate_back(
    op: Recorder, grad: Value, size: Size, before: int, after: int, axis: int
) -> Iterator[Value]:
    """Yield what both margins add: to the first and to the last element."""
    if before > 0:
        total = op.ReduceSum(op.Slice(grad, [0], [before], [axis]), [axis], keepdims=1)
        yield pad_axes(op, total, [0, size - 1], [axis])
    if after > 0:
        total = op.ReduceSum(op.Slice(grad, [-after], [END], [axis]), [axis], keepdims=1)
        yield pad_axes(op, total, [size - 1, 0], [axis])


_Back = Callable[[Recorder, Value, Size, int, int, int], Iterator[Value]]


def _extend_backward(
    op: Recorder, grad: Value, x: Value, padding: Sequence[Any], fold_back: _Back
) -> Value:
    """Add the gradients of the margins to those of the elements they repeat, axis by axis."""
    amounts = _amounts(padding)
    result = widen(op, grad)
    for axis, (before, after) in enumerate(amounts, x.rank - len(amounts)):
        if not before and not after:
            continue
        size = op.size(x, axis)
        parts = list(fold_back(op, result, size, before, after, axis))
        if not isinstance(size, int) or size + min(before, 0) + min(after, 0) > 0:
            parts.append(pad_axes(op, result, [-before, -after], [axis]))
        # else all is cropped, and onnxruntime 1.19 pads what is left of it wrongly
        result = functools.reduce(op.Add, parts)
    return store(op, op.Add(result, 0.0))  # torch's sums begin with 0.0


def _register(name: str, mode: str, fold_back: _Back) -> None:
    @converter(f"aten::{name}")
    def pad(op: Recorder, x: Value, padding: Sequence[Any]) -> Value:
        """reflection_pad2d(Tensor self, SymInt[4] padding) -> Tensor"""
        return _extend(op, x, padding, mode)

    @converter(f"aten::{name}_backward")
    def pad_backward(op: Recorder, grad_output: Value, x: Value, padding: Sequence[Any]) -> Value:
        """reflection_pad2d_backward(Tensor grad_output, Tensor self, SymInt[4] padding) -> Tensor"""
        return _extend_backward(op, grad_output, x, padding, fold_back)


for _rank in (1, 2, 3):
    _register(f"reflection_pad{_rank}d", "reflect", _reflect_back)
    _register(f"replication_pad{_rank}d", "edge", _replicate_back)
