"""Pooling by average over one to three axes, and its gradient.

NOTE: ONNX's AveragePool is never asked for a ceil_mode, where onnxruntime divides by other counts
than torch: it gets the pads that torch's windows need, and torch's divisors come on top.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from dort_rewriter.export.converters.axes import pad_axes, repeated
from dort_rewriter.export.converters.opmath import HALVES, store, widen
from dort_rewriter.export.converters.windows import (
    Size,
    Windows,
    count_up,
    count_windows,
    make_windows,
    margins,
    spatial_sizes,
    transposed_convolution,
    window_parts,
)
from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import Arguments, by_name, converter
from dort_rewriter.graph.values import Value


def average_pool(
    op: Recorder,
    x: Value,
    windows: Sequence[Windows],
    include_pad: bool = True,
    divisor: int | None = None,
) -> Value:
    """The average of each window."""
    divisors = _divisors(op, x, windows, include_pad, divisor)
    if x.dtype != ir.DataType.FLOAT and x.dtype not in HALVES:
        return op.Div(_sum_windows(op, x, windows), divisors)
    wide = widen(op, x)
    total = math.prod(w.kernel for w in windows)
    if not include_pad and divisor is None and not any(w.ceil_mode for w in windows):
        return store(op, _average(op, wide, windows, include_pad=False))
    pooled = _average(op, wide, windows, include_pad=True)
    if isinstance(divisors, int):
        return store(op, pooled if divisors == total else pooled * (total / divisors))
    return store(op, pooled * op.Div(float(total), divisors))


def _average(op: Recorder, x: Value, windows: Sequence[Windows], *, include_pad: bool) -> Value:
    """The averages over whole windows; `include_pad` counts the padding."""
    rank = len(windows)
    sizes = spatial_sizes(op, x, rank)
    counts = [count_windows(op, n, w) for n, w in zip(sizes, windows, strict=True)]
    around = [margins(n, c, w) for n, c, w in zip(sizes, counts, windows, strict=True)]
    pads = [*(before for before, _ in around), *(after for _, after in around)]
    has_batch = x.rank == rank + 2
    batch = x if has_batch else op.Unsqueeze(x, [0])
    spare = any(w.ceil_mode for w in windows) and not all(isinstance(n, int) for n in sizes)
    if spare:  # room for one window too many, which may be more than onnxruntime pads
        batch = pad_axes(op, batch, pads, range(2, 2 + rank))
    pooled = op.AveragePool(
        batch,
        kernel_shape=[w.kernel for w in windows],
        strides=[w.stride for w in windows],
        pads=None if spare or not any(pads) else pads,
        count_include_pad=int(include_pad),
    )
    if spare:
        pooled = op.Slice(pooled, [0] * rank, op.vector(counts), list(range(2, 2 + rank)))
    return pooled if has_batch else op.Squeeze(pooled, [0])


def _divisors(
    op: Recorder, x: Value, windows: Sequence[Windows], include_pad: bool, divisor: int | None
) -> int | Value:
    """What the sum over each window is divided by: a number when it is one for all."""
    if divisor is not None:
        return divisor
    lengths = [
        _lengths(op, op.size(x, axis), windows[axis], include_pad)
        for axis in range(-len(windows), 0)
    ]
    known = [length for length in lengths if isinstance(length, np.ndarray)]
    if len(known) == len(lengths) and all((k == k[0]).all() for k in known):
        return math.prod(int(k[0]) for k in known)
    dtype = ir.DataType.FLOAT if x.dtype in HALVES else x.dtype or op.dtype
    result: Any = None
    for i, length in enumerate(lengths):
        vector = op.cast(
            op.constant(length, ir.DataType.INT64) if isinstance(length, np.ndarray) else length,
            dtype,
        )
        factor = op.Reshape(vector, [-1] + [1] * (len(lengths) - 1 - i))
        result = factor if result is None else op.Mul(result, factor)
    return result


def _lengths(op: Recorder, size: Size, windows: Windows, include_pad: bool) -> Any:
    """How many elements of each window count, along one axis."""
    count = count_windows(op, size, windows)
    if include_pad and not windows.ceil_mode:
        return np.full(1, windows.kernel)
    is_known = isinstance(count, int)
    places: Any = np.arange(count) if isinstance(count, int) else count_up(op, count)
    starts = places * windows.stride - windows.padding
    least: Callable[..., Any] = np.minimum if is_known else op.Min
    most: Callable[..., Any] = np.maximum if is_known else op.Max
    ends = least(starts + windows.kernel, size + windows.padding)
    if not include_pad:
        ends, starts = least(ends, size), most(starts, 0)
    return ends - starts


def _sum_windows(op: Recorder, x: Value, windows: Sequence[Windows]) -> Value:
    """The sum of each window in a type that onnxruntime does not pool."""
    for axis in reversed(range(-len(windows), 0)):
        size = op.size(x, axis)
        count = count_windows(op, size, windows[axis])
        around = margins(size, count, windows[axis])
        if any(around):
            x = pad_axes(op, x, around, [axis])
        x = functools.reduce(op.Add, window_parts(op, x, axis, count, windows[axis]))
    return x


# -- the gradient ------------------------------------------------------------------------------


def average_pool_backward(
    op: Recorder,
    grad: Value,
    x: Value,
    windows: Sequence[Windows],
    include_pad: bool = True,
    divisor: int | None = None,
) -> Value:
    """The gradient of :func:`average_pool`: each window's share, added up."""
    divisors = _divisors(op, x, windows, include_pad, divisor)
    share = op.Add(op.Div(widen(op, grad), divisors), 0.0)  # torch's sums begin with 0.0
    sizes = spatial_sizes(op, x, len(windows))
    if share.dtype != ir.DataType.FLOAT:
        for axis in range(-len(windows), 0):
            share = _spread_axis(op, share, axis, sizes[axis], windows[axis])
        return share
    if all(w.stride == w.kernel and not w.padding for w in windows):
        return store(op, _tile(op, share, sizes, windows))
    return store(op, _spread(op, share, x, sizes, windows))


def _tile(op: Recorder, share: Value, sizes: Sequence[Size], windows: Sequence[Windows]) -> Value:
    """Repeat each element over its window, where windows lie side by side."""
    rank = len(windows)
    # Copies: faster than a transposed convolution.
    tiled = repeated(op, share, [w.kernel for w in windows])
    counts = spatial_sizes(op, share, rank)
    ends = [n - c * w.kernel for n, c, w in zip(sizes, counts, windows, strict=True)]
    if all(isinstance(end, int) and end == 0 for end in ends):
        return tiled
    return op.Pad(tiled, op.vector([*[0] * (2 * share.rank - rank), *ends]))


def _spread(
    op: Recorder, share: Value, x: Value, sizes: Sequence[Size], windows: Sequence[Windows]
) -> Value:
    """Add up windows that overlap, plane by plane."""
    counts = spatial_sizes(op, share, len(windows))
    planes = op.Reshape(share, op.vector([-1, 1, *counts]))
    ones = op.constant(np.ones((1, 1, *(w.kernel for w in windows))), ir.DataType.FLOAT)
    added = transposed_convolution(op, planes, ones, sizes, windows)
    return op.Reshape(added, op.sizes(x))


def _spread_axis(op: Recorder, share: Value, axis: int, size: Size, windows: Windows) -> Value:
    """Add up windows along one axis, in a type that onnxruntime does not convolve."""
    stride, place = windows.stride, share.rank + axis
    sizes = [op.size(share, i) for i in range(share.rank)]
    length = sizes[axis] * stride
    if stride > 1:
        apart = pad_axes(op, op.Unsqueeze(share, [place + 1]), [0, stride - 1], [place + 1])
        sizes[axis] = length
        share = op.Reshape(apart, op.vector(sizes))
    last = windows.kernel - 1
    parts = [pad_axes(op, share, [i, last - i], [place]) for i in range(windows.kernel)]
    added = functools.reduce(op.Add, parts)
    end = size + windows.padding
    missing = end - (length + last)
    missing = max(missing, 0) if isinstance(missing, int) else op.Max(missing, 0)
    whole = pad_axes(op, added, [0, missing], [place])
    return op.Slice(whole, [windows.padding], op.vector([end]), [place])


def _register(rank: int) -> None:
    @converter(f"aten::avg_pool{rank}d")
    @by_name
    def pool(op: Recorder, given: Arguments) -> Value:
        """avg_pool2d(Tensor self, int[2] kernel_size, int[2] stride=[], int[2] padding=0, bool ceil_mode=False, bool count_include_pad=True, int? divisor_override=None) -> Tensor"""
        divisor = getattr(given, "divisor_override", None)  # that of one axis has none
        windows = make_windows(rank, given)
        return average_pool(op, given.x, windows, given.count_include_pad, divisor)

    if rank == 1:
        return  # torch computes its gradient as that of two axes

    @converter(f"aten::avg_pool{rank}d_backward")
    @by_name
    def pool_backward(op: Recorder, given: Arguments) -> Value:
        """avg_pool2d_backward(Tensor grad_output, Tensor self, int[2] kernel_size, int[2] stride, int[2] padding, bool ceil_mode, bool count_include_pad, int? divisor_override) -> Tensor"""
        how = (make_windows(rank, given), given.count_include_pad, given.divisor_override)
        return average_pool_backward(op, given.grad_output, given.x, *how)


for _rank in (1, 2, 3):
    _register(_rank)
