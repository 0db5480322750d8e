"""Operators that only look at the same elements in another shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import converter
from dort_rewriter.export.values import Value


@converter("aten::t")
def t(op: Recorder, x: Value) -> Value:
    """t(Tensor(a) self) -> Tensor(a)"""
    return op.Transpose(x, perm=[1, 0]) if x.rank == 2 else x


@converter("aten::permute")
def permute(op: Recorder, x: Value, dims: Sequence[int]) -> Value:
    """permute(Tensor(a) self, int[] dims) -> Tensor(a)"""
    return op.Transpose(x, perm=[d % x.rank for d in dims]) if x.rank else x


@converter("aten::view", "aten::_unsafe_view")
def view(op: Recorder, x: Value, size: Sequence[Any]) -> Value:
    """view(Tensor(a) self, SymInt[] size) -> Tensor(a)"""
    return op.Reshape(x, op.vector(size), allowzero=1 if 0 in size else None)
