"""Resizing of images with a filter that is as wide as what it leaves out, and the gradients.

An axis is a product with a matrix of weights, which are torch's own: what its kernel makes of the
unit vectors. NOTE: one infinite or NaN element spreads along its axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import converter
from dort_rewriter.graph.values import Value

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


def _matrices(
    op: Recorder, resize: Any, sizes: Sequence[Sequence[int]], corners: bool, scales: Sequence[Any]
) -> list[Value]:
    assert op.dtype is not None
    return [
        op.constant(_weights(resize, source, target, corners, scale).numpy(), op.dtype)
        for source, target, scale in zip(*sizes, scales, strict=True)
    ]


def _register(name: str) -> None:
    resize = getattr(torch.ops.aten, name).default

    def forward(
        op: Recorder,
        x: Value,
        output_size: Sequence[int],
        align_corners: bool,
        scales_h: float | None = None,
        scales_w: float | None = None,
    ) -> Value:
        """_upsample_bilinear2d_aa(Tensor self, SymInt[2] output_size, bool align_corners, float? scales_h=None, float? scales_w=None) -> Tensor"""
        sizes = [[n for n in x.dims[-2:] if isinstance(n, int)], list(output_size)]
        scales = (scales_h, scales_w)
        rows, columns = _matrices(op, resize, sizes, align_corners, scales)
        return op.MatMul(op.Transpose(rows, perm=[1, 0]), op.MatMul(x, columns))

    def backward(
        op: Recorder,
        grad_output: Value,
        output_size: Sequence[int],
        input_size: Sequence[int],
        align_corners: bool,
        scales_h: float | None = None,
        scales_w: float | None = None,
    ) -> Value:
        """_upsample_bilinear2d_aa_backward(Tensor grad_output, SymInt[2] output_size, SymInt[4] input_size, bool align_corners, float? scales_h=None, float? scales_w=None) -> Tensor"""
        sizes = [list(input_size[-2:]), list(output_size)]
        scales = (scales_h, scales_w)
        rows, columns = _matrices(op, resize, sizes, align_corners, scales)
        columns = op.Transpose(columns, perm=[1, 0])
        return op.MatMul(rows, op.MatMul(grad_output, columns))

    converter(f"aten::{name}", when=_has_weights)(forward)
    converter(f"aten::{name}_backward", when=_has_weights)(backward)


for _name in ("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"):
    _register(_name)
