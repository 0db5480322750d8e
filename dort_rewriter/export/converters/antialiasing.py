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
from dort_rewriter.export.registry import Arguments, by_name, converter
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


def _register(name: str) -> None:
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
    _register(_name)
