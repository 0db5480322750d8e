"""TensorScatter: consecutive places of a tensor are written over, as those of a static cache."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import torch

from dort_rewriter.export.recorder import Recorder
from dort_rewriter.graph.values import Value

__all__ = ["SINCE", "is_run", "write_run"]

SINCE = 24
"""The opset from which TensorScatter is there."""

_ATEN = torch.ops.aten
_COPIES = (_ATEN._to_copy.default, _ATEN.clone.default, _ATEN.alias.default, _ATEN.view.default)


def write_run(op: Recorder, x: Value, update: Value, first: Any, axis: int) -> Value:
    """`x` with an update in place of as many elements from `first` on, along an axis that is not
    the first one."""
    batch = op.size(x, 0)
    place = op.cast(op.vector([first]), ir.DataType.INT64)
    places = place if batch == 1 else op.Expand(place, op.vector([batch]))
    result: Value = op.TensorScatter(x, update, places, axis=axis)
    return result


def is_run(index: Any) -> bool:
    """Whether a node of the graph holds one place, or places each of which follows the last."""
    if not isinstance(index, torch.fx.Node):
        return False
    meta = index.meta.get("val")
    if isinstance(meta, torch.Tensor) and meta.ndim <= 1 and _is_one(meta):
        return True
    if index.target in _COPIES:
        return is_run(index.args[0])
    if index.target in (_ATEN.arange.default, _ATEN.arange.start):
        return True
    if index.target is _ATEN.arange.start_step:
        step = index.args[2] if len(index.args) > 2 else 1
        return isinstance(step, int) and step == 1
    if index.target is _ATEN.add.Tensor and index.kwargs.get("alpha", 1) == 1:
        a, b = index.args
        return any(is_run(run) and _is_shift(shift) for run, shift in ((a, b), (b, a)))
    return False


def _is_one(tensor: torch.Tensor) -> bool:
    return all(isinstance(size, int) and size == 1 for size in tensor.shape)


def _is_shift(value: Any) -> bool:
    """Whether what is added to places is one number for all of them."""
    meta = value.meta.get("val") if isinstance(value, torch.fx.Node) else value
    if isinstance(meta, torch.Tensor):
        return _is_one(meta) and not meta.is_floating_point()
    return isinstance(meta, int | torch.SymInt)
