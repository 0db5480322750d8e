"""Copies and conversions: a copy is its source, since nothing in a graph is written to."""

from __future__ import annotations

import functools
import math
from typing import Any

import onnx_ir as ir
import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from dort_rewriter.dtypes import FLOAT8
from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import converter
from dort_rewriter.graph.values import Value


@converter("aten::alias", "aten::clone", "aten::detach", "aten::alias_copy", "aten::detach_copy")
@converter(
    "aten::lift_fresh", "aten::lift_fresh_copy"
)  # torch's fail on constants under a fake mode
@converter("prims::view_of")
def clone(op: Recorder, x: Value) -> Value:
    """clone(Tensor self, *, MemoryFormat? memory_format=None) -> Tensor"""
    return x


@converter("aten::_to_copy", "prims::convert_element_type")
def to_copy(op: Recorder, x: Value, dtype: Any = None) -> Value:
    """_to_copy(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None) -> Tensor

    NOTE: ORT rounds some numbers beyond the largest one of a float8 type otherwise than torch, of
    which each version has its own way, and 1.19 small ones to NaN where there is no -0.0.
    """
    made = op.result.dtype
    if made not in FLOAT8 or x.dtype == op.dtype:
        return op.cast(x, op.dtype)
    limit, is_beyond, instead = _limit(made)
    x = op.cast(x, ir.DataType.FLOAT)
    size = op.Abs(x)
    beyond = op.GreaterOrEqual(size, limit) if is_beyond else op.Greater(size, limit)
    x = op.Where(beyond, op.Where(op.Less(x, 0.0), -instead, instead), x)
    if op.dtype.name.endswith("UZ"):
        ends = torch.finfo(made)
        x = op.Where(op.LessOrEqual(size, ends.smallest_normal * ends.eps / 2), 0.0, x)
    result: Value = op.Cast(x, to=op.dtype, saturate=0)
    return result


def _has_as_many_bits(node: torch.fx.Node) -> bool:
    """its two types have other widths, or one is complex"""
    types = [n.meta["val"].dtype for n in (node, *node.all_input_nodes)]
    return len({t.itemsize for t in types}) == 1 and not any(t.is_complex for t in types)


@converter("aten::view.dtype", "aten::view_copy.dtype", when=_has_as_many_bits, since=26)
def view_dtype(op: Recorder, x: Value, dtype: Any) -> Value:
    """view.dtype(Tensor(a) self, ScalarType dtype) -> Tensor(a)"""
    return x if x.dtype == op.dtype else op.BitCast(x, to=int(op.dtype))


@functools.cache
def _limit(dtype: torch.dtype) -> tuple[float, bool, float]:
    """What lies in the middle between the largest number and the next there would be, whether
    torch takes it for one beyond, and what becomes of such a positive number."""
    ends = torch.finfo(dtype)
    limit = ends.max + 2.0 ** math.floor(math.log2(ends.max)) * ends.eps / 2
    with unset_fake_temporarily():
        at, after = (float(torch.tensor(x).to(dtype)) for x in (limit, 4 * limit))
        return limit, at != ends.max or after == ends.max, after


@converter("aten::copy")
def copy(op: Recorder, x: Value, src: Value) -> Value:
    """copy(Tensor self, Tensor src, bool non_blocking=False) -> Tensor"""
    return op.Expand(op.cast(src, op.dtype), op.sizes(x))
