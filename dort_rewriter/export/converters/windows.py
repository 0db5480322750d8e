"""The geometry of sliding windows, which convolutions, pooling and unfolding share.

Sizes are numbers when they are static and 1-D results otherwise; kernels, strides, pads and
dilations are always numbers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import onnx_ir as ir

from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import Arguments, Refused
from dort_rewriter.graph.values import Value
from dort_rewriter.kernels.operators import CONVOLUTION_LIMITS

Size = int | Value


def spread(values: Sequence[Any] | int, rank: int) -> list[int]:
    """An argument that holds one number, or one an axis, as one an axis."""
    items = list(values) if isinstance(values, Sequence) else [values]
    if not all(isinstance(v, int) for v in items):
        raise Refused("a kernel, stride, padding or dilation is symbolic")
    return items if len(items) == rank else items * rank


def group_count(groups: Any) -> int:
    """The groups of channels, whose number has to be known."""
    if not isinstance(groups, int):
        raise Refused("the number of groups is symbolic")
    return groups


def convolution_windows(given: Arguments) -> dict[str, Any]:
    """How windows move, as the attributes of torch's convolution in a model."""
    rank = given.weight.rank - 2
    lists = {name: spread(getattr(given, name), rank) for name in CONVOLUTION_LIMITS}
    groups = group_count(given.groups)
    return {"transposed": int(given.transposed), "groups": groups, **lists}


def are_taken(given: Arguments) -> bool:
    """Whether the windows of a convolution are known, and none that torch cannot compute."""
    for name, most in CONVOLUTION_LIMITS.items():
        numbers = getattr(given, name)
        assert isinstance(numbers, Sequence)
        if not all(isinstance(n, int) and n <= most for n in numbers):
            return False
    return True


class Windows(NamedTuple):
    """The windows along one axis."""

    kernel: int
    stride: int
    padding: int = 0
    dilation: int = 1
    ceil_mode: bool = False

    @property
    def extent(self) -> int:
        """How many elements a window spans."""
        return self.dilation * (self.kernel - 1) + 1

    @property
    def overlap(self) -> bool:
        """Whether an element may be in two windows."""
        return self.stride < self.extent


def make_windows(rank: int, given: Arguments) -> list[Windows]:
    """The windows along each axis from the arguments of a pooling."""
    kernels = spread(given.kernel_size, rank)
    settings = (given.stride or kernels, given.padding, getattr(given, "dilation", 1))
    numbers = zip(kernels, *(spread(v, rank) for v in settings), strict=True)
    return [Windows(k, s, p, d, given.ceil_mode) for k, s, p, d in numbers]


def spatial_sizes(op: Recorder, x: Value, rank: int) -> list[Size]:
    """The sizes of the last axes."""
    return [op.size(x, axis) for axis in range(-rank, 0)]


def count_windows(op: Recorder, size: Size, windows: Windows) -> Size:
    """How many windows there are along an axis, as torch counts them.

    In `ceil_mode` the last window may reach over the end, but it starts within it.
    """
    _, stride, padding, _, ceil_mode = windows
    room: Any = size + (2 * padding - windows.extent + (stride - 1 if ceil_mode else 0))
    if isinstance(room, int) and isinstance(size, int):
        whole = room // stride + 1
        return whole - (ceil_mode and (whole - 1) * stride >= size + padding)
    count: Value = room / stride + 1
    if not ceil_mode or stride == 1:
        return count
    starts_outside = (count - 1) * stride >= size + padding
    return count - op.cast(starts_outside, ir.DataType.INT64)


def count_up(op: Recorder, size: Size) -> Value:
    """0, 1, 2 ... below a size."""
    zero, one = (op.constant(n, ir.DataType.INT64) for n in (0, 1))
    return op.Range(zero, op.Squeeze(op.vector([size]), [0]), one)


def margins(size: Size, count: Size, windows: Windows) -> tuple[int, int]:
    """How much to pad so that no window reaches over an end."""
    padding = windows.padding
    if isinstance(size, int) and isinstance(count, int):
        reach = (count - 1) * windows.stride + windows.extent - padding
        return padding, max(0, reach - size)
    return padding, padding + (windows.stride - 1 if windows.ceil_mode else 0)


def window_parts(op: Recorder, x: Value, axis: int, count: Size, windows: Windows) -> list[Value]:
    """Return, for each place in a window, the elements all windows have there."""
    parts = []
    span = (count - 1) * windows.stride + 1
    for i in range(windows.kernel):
        start = i * windows.dilation
        end = op.vector([span + start])
        parts.append(op.Slice(x, [start], end, [x.rank + axis], [windows.stride]))
    return parts


def unfold(
    op: Recorder, x: Value, counts: Sequence[Size], windows: Sequence[Windows], axis: int
) -> Value:
    """The elements of each window of `x` [A, B, *sizes], on a new axis in front of `axis`.

    `counts` is how many windows there are along each spatial axis.
    """
    kernel, stride, padding, dilation, _ = map(list, zip(*windows, strict=True))
    tiles = [n * k for n, k in zip(counts, kernel, strict=True) if isinstance(n, int)]
    side_by_side = kernel == stride and not any(padding) and max(dilation) == 1
    if side_by_side and tiles == list(x.dims[2:]):
        return _untile(op, x, counts, kernel, axis)
    if any(padding):
        x = op.Pad(x, [0, 0, *padding, 0, 0, *padding])
    spans = [(n - 1) * s + 1 for n, s in zip(counts, stride, strict=True)]
    parts = []
    for place in itertools.product(*map(range, kernel)):
        starts = [i * d for i, d in zip(place, dilation, strict=True)]
        ends = [span + start for span, start in zip(spans, starts, strict=True)]
        part = op.Slice(x, starts, op.vector(ends), list(range(2, x.rank)), stride)
        parts.append(op.Unsqueeze(part, [axis]))
    return op.Concat(*parts, axis=axis)


def _untile(
    op: Recorder, x: Value, counts: Sequence[Size], kernel: Sequence[int], axis: int
) -> Value:
    """Unfold windows that lie side by side and cover everything: patches of an image."""
    rank = len(kernel)
    pairs = [n for pair in zip(counts, kernel, strict=True) for n in pair]
    inside = list(range(3, 3 + 2 * rank, 2))
    outside = list(range(2, 2 + 2 * rank, 2))
    tiles = op.Reshape(x, [0, 0, *pairs])
    order = [*range(axis), *inside, *range(axis, 2), *outside]
    places = op.Transpose(tiles, perm=order)
    sizes = [op.size(x, 0), op.size(x, 1), *counts]
    sizes.insert(axis, math.prod(kernel))
    return op.Reshape(places, op.vector(sizes))


def transposed_convolution(
    op: Recorder,
    g: Value,
    weight: Value,
    sizes: Sequence[Size],
    windows: Sequence[Windows],
    groups: int = 1,
) -> Value:
    """What each window of `g` adds to a result of the given spatial sizes.

    It is the gradient of a convolution. Windows may reach over the end of the result; what no
    window touches is zero.
    """
    rank = len(windows)
    _, stride, padding, dilation, _ = map(list, zip(*windows, strict=True))
    ends: list[int] = []
    for n, count, w in zip(sizes, g.dims[2:], windows, strict=True):
        if isinstance(n, int) and isinstance(count, int):
            ends.append((count - 1) * w.stride + w.extent - w.padding - n)
    common = {"strides": stride, "dilations": dilation, "group": groups}
    if len(ends) == rank:
        return op.ConvTranspose(
            g,
            weight,
            pads=[*padding, *(max(0, end) for end in ends)],
            output_padding=[max(0, -end) for end in ends] if min(ends) < 0 else None,
            **common,
        )
    whole = op.ConvTranspose(g, weight, **common)
    missing = [w.padding + w.stride - 1 for w in windows]
    if any(missing):
        whole = op.Pad(whole, [0] * (4 + rank) + missing)
    stops = [n + p for n, p in zip(sizes, padding, strict=True)]
    return op.Slice(whole, padding, op.vector(stops), list(range(2, 2 + rank)))
