"""Resizing of one to three axes, nearest, linear, cubic or antialiased, and the gradients."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch.utils._python_dispatch import _disable_current_modes

from dort_rewriter.export.converters.axes import repeated
from dort_rewriter.export.converters.interpolation import (
    Axis,
    Taps,
    cubic_taps,
    gather_taps,
    linear_taps,
    nearest_taps,
    repetition,
    to_source,
)
from dort_rewriter.export.converters.opmath import store, widen
from dort_rewriter.export.converters.windows import Size, spatial_sizes
from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import Arguments, Predicate, by_name, converter
from dort_rewriter.graph.values import Value

_MakeTaps = Callable[[Recorder, Axis, ir.DataType], Taps]


def _is_floating(node: torch.fx.Node) -> bool:
    """torch rounds interpolated integers in its own way"""
    first = node.args[0]
    assert isinstance(first, torch.fx.Node)
    return bool(first.meta["val"].dtype.is_floating_point)


def _axes(
    op: Recorder, given: Arguments, sources: Sequence[Size], targets: Sequence[Size] | None
) -> list[Axis]:
    """Describe the axes; without targets they are those the factors lead to."""
    corners = getattr(given, "align_corners", False)
    axes = []
    for i, (source, factor) in enumerate(zip(sources, _factors(given, len(sources)), strict=True)):
        target = targets[i] if targets else _scaled(op, source, factor or 1.0)
        axes.append(Axis(source, target, factor, corners))
    return axes


def _scaled(op: Recorder, size: Size, factor: float) -> Size:
    if isinstance(size, int):
        return math.floor(float(size) * factor)
    if factor == int(factor):
        return size * int(factor)
    product = op.Mul(op.cast(size, ir.DataType.DOUBLE), op.constant(factor, ir.DataType.DOUBLE))
    return op.cast(op.Floor(product), ir.DataType.INT64)


# -- to the nearest ----------------------------------------------------------------------------


def _nearest(op: Recorder, x: Value, axes: Sequence[Axis], *, exact: bool) -> Value:
    rank = len(axes)
    times = repetition(axes)
    if times is not None and x.dtype == ir.DataType.FLOAT:
        return repeated(op, x, times)
    for place, axis in zip(range(-rank, 0), axes, strict=True):
        x = gather_taps(op, x, place, nearest_taps(op, axis, exact=exact))
    return x


def _nearest_backward(op: Recorder, grad: Value, axes: Sequence[Axis], *, exact: bool) -> Value:
    rank = len(axes)
    wide = widen(op, grad)
    times = repetition(axes)
    if times is not None and wide.dtype == ir.DataType.FLOAT:
        averages = op.AveragePool(wide, kernel_shape=times, strides=times)
        return store(op, averages * float(math.prod(times)) + 0.0)  # torch's sums begin with 0.0
    for place, axis in zip(range(-rank, 0), axes, strict=True):
        wide = to_source(op, wide, place, nearest_taps(op, axis, exact=exact), axis.source)
    return store(op, wide)


# -- linear and cubic --------------------------------------------------------------------------


def _interpolate(op: Recorder, x: Value, axes: Sequence[Axis], make_taps: _MakeTaps) -> Value:
    wide = widen(op, x)
    if make_taps is linear_taps and wide.dtype == ir.DataType.FLOAT and _is_resizable(axes):
        return store(op, _resize(op, wide, axes))
    assert wide.dtype is not None
    for place, axis in zip(range(-len(axes), 0), axes, strict=True):
        wide = gather_taps(op, wide, place, make_taps(op, axis, wide.dtype))
    return store(op, wide)


def _is_resizable(axes: Sequence[Axis]) -> bool:
    """Whether ONNX's Resize takes the same places as torch."""
    if all(a.factor is None or a.align_corners for a in axes):
        return True
    # NOTE: Resize computes the size in float32: only factors that it holds exactly are safe.
    return all(
        a.factor is not None and np.float32(a.factor) == a.factor and _by_factor(a) for a in axes
    )


def _by_factor(axis: Axis) -> bool:
    if not isinstance(axis.source, int) or not isinstance(axis.target, int):
        return True
    assert axis.factor is not None
    return int(axis.source * axis.factor) == axis.target


def _resize(op: Recorder, x: Value, axes: Sequence[Axis]) -> Value:
    """Resize by linear interpolation of two or three axes; one axis is taken as two."""
    rank = len(axes)
    batch = op.Unsqueeze(x, [x.rank - 1]) if rank == 1 else x
    corners = axes[0].align_corners
    lead = batch.rank - rank
    if corners or axes[0].factor is None:
        first: list[Size] = [op.size(batch, i) for i in range(lead)]
        scales, sizes = None, op.vector([*first, *(a.target for a in axes)])
    else:
        factors = [a.factor or 1.0 for a in axes]
        scales, sizes = op.constant([1.0] * lead + factors, ir.DataType.FLOAT), None
    mode = "align_corners" if corners else "half_pixel"
    resized = op.Resize(
        batch, None, scales, sizes, mode="linear", coordinate_transformation_mode=mode
    )
    return op.Squeeze(resized, [x.rank - 1]) if rank == 1 else resized


def _interpolate_backward(
    op: Recorder, grad: Value, axes: Sequence[Axis], make_taps: _MakeTaps
) -> Value:
    wide = widen(op, grad)
    assert wide.dtype is not None
    for place, axis in zip(reversed(range(-len(axes), 0)), reversed(axes), strict=True):
        taps = make_taps(op, axis, wide.dtype)
        wide = to_source(op, wide, place, taps, axis.source)
    return store(op, wide)


# -- registration ------------------------------------------------------------------------------


_SCALES = {1: ("scales",), 2: ("scales_h", "scales_w"), 3: ("scales_d", "scales_h", "scales_w")}
"""The names of the factors of so many axes, which some overloads have in one list."""

_Resize = Callable[[Recorder, Value, Sequence[Axis]], Value]


def _factors(given: Arguments, rank: int) -> Sequence[float | None]:
    if hasattr(given, "scale_factors"):
        return given.scale_factors or [None] * rank
    return [getattr(given, name) for name in _SCALES[rank]]


def _register(
    name: str, rank: int, forward: _Resize, backward: _Resize, when: Predicate | None = None
) -> None:
    @converter(f"aten::{name}", f"aten::{name}.vec", when=when)
    @by_name
    def resize(op: Recorder, given: Arguments) -> Value:
        """upsample_bilinear2d(Tensor self, SymInt[2] output_size, bool align_corners, float? scales_h=None, float? scales_w=None) -> Tensor"""
        x = given.x if hasattr(given, "x") else given.input
        return forward(op, x, _axes(op, given, spatial_sizes(op, x, rank), given.output_size))

    @converter(f"aten::{name}_backward", when=when)
    @by_name
    def resize_backward(op: Recorder, given: Arguments) -> Value:
        """upsample_bilinear2d_backward(Tensor grad_output, SymInt[2] output_size, SymInt[4] input_size, bool align_corners, float? scales_h=None, float? scales_w=None) -> Tensor"""
        grad, sources = given.grad_output, given.input_size[-rank:]
        return backward(op, grad, _axes(op, given, sources, spatial_sizes(op, grad, rank)))


for _rank in (1, 2, 3):
    for _name, _exact in (("upsample_nearest", False), ("_upsample_nearest_exact", True)):
        _register(
            f"{_name}{_rank}d",
            _rank,
            functools.partial(_nearest, exact=_exact),
            functools.partial(_nearest_backward, exact=_exact),
        )
for _name, _rank, _taps in (
    ("upsample_linear1d", 1, linear_taps),
    ("upsample_bilinear2d", 2, linear_taps),
    ("upsample_trilinear3d", 3, linear_taps),
    ("upsample_bicubic2d", 2, cubic_taps),
):
    _register(
        _name,
        _rank,
        functools.partial(_interpolate, make_taps=_taps),
        functools.partial(_interpolate_backward, make_taps=_taps),
        when=_is_floating,
    )


# -- with a filter that is as wide as what it leaves out ---------------------------------------

# An axis is a product with a matrix of weights, which are torch's own: what its kernel makes of the
# unit vectors. NOTE: one infinite or NaN element spreads along its axes.

_TYPES = (torch.float32, torch.float64)


def _has_weights(node: torch.fx.Node) -> bool:
    """a side has one element or is not known at export, or torch keeps 16 bits between the axes

    NOTE: of images that are one element wide, torch takes the weights of one row for all of them.
    """
    source, result = node.args[0], node.meta["val"]
    assert isinstance(source, torch.fx.Node)
    sides = [n for v in (source.meta["val"], result) for n in v.shape[-2:]]
    return result.dtype in _TYPES and all(isinstance(n, int) and n > 1 for n in sides)


def _weights(resize: Any, source: int, target: int, corners: bool, scale: Any) -> torch.Tensor:
    """The share of each element of the source in each one of the target."""
    with _disable_current_modes(), torch.no_grad():
        units = torch.eye(source, dtype=torch.float64).view(1, 1, source, source)
        found: torch.Tensor = resize(units, [source, target], corners, None, scale)
        return found.view(source, target)


def _register_antialiased(name: str) -> None:
    resize = getattr(torch.ops.aten, name).default

    def matrices(op: Recorder, given: Arguments, sides: Sequence[Any]) -> list[Value]:
        scales = (given.scales_h, given.scales_w)
        return [
            op.constant(_weights(resize, n, m, given.align_corners, scale).numpy(), op.dtype)
            for n, m, scale in zip(sides, given.output_size, scales, strict=True)
        ]

    @converter(f"aten::{name}", when=_has_weights)
    @by_name
    def forward(op: Recorder, given: Arguments) -> Value:
        """_upsample_bilinear2d_aa(Tensor self, SymInt[2] output_size, bool align_corners, float? scales_h=None, float? scales_w=None) -> Tensor"""
        rows, columns = matrices(op, given, given.x.dims[-2:])
        return op.MatMul(op.Transpose(rows, perm=[1, 0]), op.MatMul(given.x, columns))

    @converter(f"aten::{name}_backward", when=_has_weights)
    @by_name
    def backward(op: Recorder, given: Arguments) -> Value:
        """_upsample_bilinear2d_aa_backward(Tensor grad_output, SymInt[2] output_size, SymInt[4] input_size, bool align_corners, float? scales_h=None, float? scales_w=None) -> Tensor"""
        rows, columns = matrices(op, given, given.input_size[-2:])
        columns = op.Transpose(columns, perm=[1, 0])
        return op.MatMul(rows, op.MatMul(given.grad_output, columns))


for _name in ("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"):
    _register_antialiased(_name)
