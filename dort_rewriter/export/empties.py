"""Results without an element: constants, whatever the operator.

What is known of such a result is all there is to know. onnxruntime computes some of them wrongly,
and 1.19 does not survive the building of a session with others (`Mul(Div(Sub(a, aT), d), u)` of
empty matrices, which the gradient of `svd` has).
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import torch
from onnx_ir.tensor_adapters import TorchTensor

from dort_rewriter.graph.values import Value
from dort_rewriter.graph.writer import Writer

__all__ = ["empty_results"]


def empty_results(writer: Writer, meta: Any) -> Value | list[Value] | None:
    """Constants for a result, or a list of results, that holds no element; else None."""
    if isinstance(meta, list | tuple):
        if not meta or not all(_is_empty(m) for m in meta):
            return None
        return [_constant(writer, m) for m in meta]
    return _constant(writer, meta) if _is_empty(meta) else None


def _is_empty(meta: Any) -> bool:
    if not isinstance(meta, torch.Tensor):
        return False
    return all(type(size) is int for size in meta.shape) and 0 in meta.shape


def _constant(writer: Writer, meta: torch.Tensor) -> Value:
    tensor: ir.TensorProtocol = TorchTensor(torch.empty(meta.shape, dtype=meta.dtype))
    return writer.tensor(tensor)
