"""Discrete Fourier transforms by ONNX's DFT, one dimension after the other.

In models that run here torch transforms: its libraries are many times faster than DFT.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx_ir as ir

from dort_rewriter.export.complex_numbers.pairs import Complex
from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import Refused
from dort_rewriter.graph.values import Value

__all__ = ["FOURIER"]


def _of_complex(
    op: Recorder, x: Complex, dim: Sequence[int], normalization: int, forward: bool
) -> Value:
    axes = [d % x.rank for d in dim]
    pairs = x.pairs
    for axis in axes:
        pairs = _transform(op, pairs, axis, inverse=not forward)
    return _scaled(op, pairs, [x.pairs.dims[a] for a in axes], normalization, undone=not forward)


def _of_reals(
    op: Recorder, x: Value, dim: Sequence[int], normalization: int, onesided: bool
) -> Value:
    *others, last = [d % x.rank for d in dim]
    pairs = _transform(op, op.Unsqueeze(x, [x.rank]), last, onesided=onesided)
    for axis in others:
        pairs = _transform(op, pairs, axis)
    return _scaled(op, pairs, [x.dims[a] for a in (*others, last)], normalization)


def _to_reals(
    op: Recorder, x: Complex, dim: Sequence[int], normalization: int, last_dim_size: Any
) -> Value:
    """Half of the spectrum is given: the other one is its mirror image, conjugated."""
    *others, last = [d % x.rank for d in dim]
    pairs, dims = x.pairs, x.pairs.dims
    for axis in others:
        pairs = _transform(op, pairs, axis, inverse=True)
    length, given = last_dim_size, dims[last]
    if not isinstance(length, int) or not isinstance(given, int) or given != length // 2 + 1:
        raise Refused("of a size that is known when it runs, or padded")
    mirrored = op.Slice(pairs, [(length - 1) // 2], [0], [last], [-1])
    mirrored = op.Mul(mirrored, op.constant([1, -1], op.dtype))
    whole = op.Concat(pairs, mirrored, axis=last) if length > 2 else pairs
    whole.shape = ir.Shape([*dims[:last], length, *dims[last + 1 :]])
    whole = _transform(op, whole, last, inverse=True)
    sizes = [*(dims[a] for a in others), length]
    return op.Gather(_scaled(op, whole, sizes, normalization, undone=True), 0, axis=-1)


def _transform(
    op: Recorder, x: Value, axis: int, *, inverse: bool = False, onesided: bool = False
) -> Value:
    """Transform one dimension; the inverse divides by its size. The first one is ONNX's batch."""
    shifted = op.Unsqueeze(x, [0])
    how = {"inverse": int(inverse), "onesided": int(onesided)}
    if op.opset >= 20:
        found = op.DFT(shifted, None, op.constant(axis + 1), **how)
    else:
        found = op.DFT(shifted, axis=axis + 1, **how)
    return op.Squeeze(found, [0])


def _scaled(
    op: Recorder, x: Value, sizes: Sequence[Any], normalization: int, *, undone: bool = False
) -> Value:
    """Divide as torch's numbers say: by nothing, the root of the elements, or them all.

    ``undone`` when DFT has divided by them all already.
    """
    if not all(isinstance(s, int) for s in sizes):
        raise Refused("of a size that is known when it runs")
    count = math.prod(sizes)
    factor = (1.0, count**-0.5, 1.0 / count)[normalization] * (count if undone else 1)
    return x if factor == 1 else op.Mul(x, op.constant(factor, op.dtype))


FOURIER: Mapping[str, Callable[..., Any]] = {
    "aten::_fft_c2c": _of_complex,
    "aten::_fft_c2r": _to_reals,
    "aten::_fft_r2c": _of_reals,
}
