"""The larger and the smaller of two numbers: NaN wins, or loses.

NOTE: torch returns the first of two zeros of different signs, but in its vectors the second; the
end of a row is no whole vector. Models for its CPU kernels say which, where rows are short enough
for that to be a mask. ONNX leaves it open: files have plain nodes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
import torch

from dort_rewriter.export.converters.opmath import HALVES, is_bool, is_float, store, widen
from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import converter
from dort_rewriter.graph.values import Value

__all__ = ["maximum", "minimum"]

_VECTORS = 64
"""The bytes that torch's kernels compute at once: two vectors of AVX2, which they are made for."""
_MASKED = 4096
"""Larger results have no mask: less than a vector of them may have another zero."""


@converter("aten::maximum")
def maximum(op: Recorder, x: Value, other: Value) -> Value:
    """maximum(Tensor self, Tensor other) -> Tensor"""
    if x.dtype == ir.DataType.INT64:  # ORT's Max of 1 and 2**31 is 1
        return op.Where(op.Less(x, other), other, x)
    if is_bool(x):
        return op.Or(x, other)
    return _extremum(op, "Max", x, other)


@converter("aten::minimum")
def minimum(op: Recorder, x: Value, other: Value) -> Value:
    """minimum(Tensor self, Tensor other) -> Tensor"""
    if x.dtype == ir.DataType.INT64:  # as Max
        return op.Where(op.Less(other, x), other, x)
    if is_bool(x):
        return op.And(x, other)
    return _extremum(op, "Min", x, other)


@converter("aten::fmax")
def fmax(op: Recorder, x: Value, other: Value) -> Value:
    """fmax(Tensor self, Tensor other) -> Tensor"""
    if not is_float(x):
        return maximum(op, x, other)
    return _known(op, "Greater", x, other)


@converter("aten::fmin")
def fmin(op: Recorder, x: Value, other: Value) -> Value:
    """fmin(Tensor self, Tensor other) -> Tensor"""
    if not is_float(x):
        return minimum(op, x, other)
    return _known(op, "Less", x, other)


def _known(op: Recorder, beyond: str, x: Value, other: Value) -> Value:
    """The larger or the smaller of two, of which NaN is none; of 16 bits the second of zeros."""
    beyond = f"{beyond}OrEqual" if op.dtype in HALVES else beyond
    x, other = widen(op, x), widen(op, other)
    return store(op, op.Where(op.Or(op.call(beyond, other, x), op.IsNaN(x)), other, x))


def _extremum(op: Recorder, kind: str, x: Value, other: Value) -> Value:
    """The larger or the smaller of two, not of int64."""
    width = op.result.element_size()
    x, other = widen(op, x), widen(op, other)  # ORT 1.19 loses float16's NaN
    sizes = list(op.result.shape)
    is_small = all(isinstance(s, int) for s in sizes) and 0 < math.prod(sizes) <= _MASKED
    if not op.own_kernels or not is_float(x) or not is_small:
        return store(op, op.call(kind, x, other))
    seconds = _seconds(op, sizes, _VECTORS // width)
    beyond, or_equal = ("Greater", "GreaterOrEqual") if kind == "Max" else ("Less", "LessOrEqual")
    wins = op.call(or_equal if all(seconds) else beyond, other, x)
    if any(seconds) and not all(seconds):
        mask = op.Reshape(op.constant(seconds, ir.DataType.BOOL), sizes)
        wins = op.Or(wins, op.And(mask, op.Equal(other, x)))
    return store(op, op.Where(op.Or(wins, op.IsNaN(other)), other, x))


def _seconds(op: Recorder, sizes: Sequence[int], width: int) -> list[bool]:
    """Where torch returns the second of equal numbers: in rows of whole vectors."""
    assert op.fx_node is not None
    given: list[Any] = [n.meta.get("val") for n in op.fx_node.all_input_nodes]
    if places := _places(given, sizes):
        return [place < len(places) - len(places) % width for place in places]
    length = 1
    for i in reversed(range(len(sizes))):
        steps = [_step(v, len(sizes) - i, sizes[i]) for v in given]
        if not all(step in (length, 0) or sizes[i] == 1 for step in steps):
            break
        if any(step == 0 and v.numel() > 1 for step, v in zip(steps, given, strict=True)):
            break  # a row that is repeated
        length *= sizes[i]
    whole = length - length % width
    return [i % length < whole for i in range(math.prod(sizes))]


def _places(given: Sequence[torch.Tensor], sizes: Sequence[int]) -> list[int]:
    """Where each element lies, if all operands lie alike and without gaps."""
    strides = {(v.shape, v.stride()) for v in given}
    if len(strides) > 1 or list(given[0].shape) != list(sizes):
        return []
    steps = [int(s) for s in given[0].stride()]
    indices = itertools.product(*map(range, sizes))
    places = [sum(i * s for i, s in zip(at, steps, strict=True)) for at in indices]
    return places if sorted(places) == list(range(len(places))) else []


def _step(value: torch.Tensor, from_last: int, size: int) -> int:
    """How far apart the elements are along a dimension of the result, 0 for one that repeats."""
    if from_last > value.ndim or (value.shape[-from_last] == 1 and size > 1):
        return 0
    return int(value.stride(-from_last))
