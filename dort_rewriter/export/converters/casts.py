"""Copies and conversions: a copy is its source, since nothing in a graph is written to."""

from __future__ import annotations

from typing import Any

from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import converter
from dort_rewriter.graph.values import Value


@converter(
    "aten::alias",
    "aten::clone",
    "aten::detach",
    "aten::lift_fresh",  # its decomposition fails on constants under a fake mode
    "aten::lift_fresh_copy",
)
def clone(op: Recorder, x: Value) -> Value:
    """clone(Tensor self, *, MemoryFormat? memory_format=None) -> Tensor"""
    return x


@converter("prims::view_of")
def view_of(op: Recorder, a: Value) -> Value:
    """view_of(Tensor(a) a) -> Tensor(a)"""
    return a


@converter("aten::_to_copy")
def to_copy(op: Recorder, x: Value, *, dtype: Any = None) -> Value:
    """_to_copy(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None) -> Tensor"""
    return op.cast(x, op.dtype)


@converter("prims::convert_element_type")
def convert_element_type(op: Recorder, a: Value, dtype: Any) -> Value:
    """convert_element_type(Tensor a, ScalarType dtype) -> Tensor"""
    return op.cast(a, op.dtype)


@converter("aten::copy")
def copy(op: Recorder, x: Value, src: Value) -> Value:
    """copy(Tensor self, Tensor src, bool non_blocking=False) -> Tensor"""
    return op.Expand(op.cast(src, op.dtype), op.sizes(x))
