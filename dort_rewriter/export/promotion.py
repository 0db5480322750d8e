"""Type promotion of elementwise operators: AOTAutograd's graphs leave it to the kernels.

Tensor operands are cast to the type torch computes in; Python numbers are left alone, the recorder
gives them the type of their neighbours. Operands that are all numbers become tensors, as in torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes

from dort_rewriter.dtypes import to_onnx_type
from dort_rewriter.export.complex_numbers import has_complex
from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.torch_calls import is_called

__all__ = ["promote"]

_UNPROMOTED = (
    "aten::_to_copy",
    "aten::clone",
    "aten::fill",
    "aten::logical_",
    "aten::masked_fill",
    "prims::",
)
"""Elementwise by tag, but each operand keeps its own type."""

_EXACT_BESIDE = ("aten::mul", "aten::div", "aten::floor_divide")
"""What torch gives its second operand as it is, where that is a number beside 16-bit tensors: all
other operators, and first operands, see it rounded to 16 bits."""

_Number = (int, float, torch.SymInt, torch.SymFloat)


def promote(recorder: Recorder, node: torch.fx.Node, args: Sequence[Any]) -> Sequence[Any]:
    """The arguments of an FX node with the casts that its operator implies."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or torch.Tag.pointwise not in target.tags:
        return args
    if target.name().startswith(_UNPROMOTED) or is_called(node):  # by torch, which promotes
        return args
    if has_complex(node):  # their converters promote
        return args
    metas = [a.meta.get("val") if isinstance(a, torch.fx.Node) else a for a in node.args]
    first = 1 if target.name().startswith("aten::where") else 0  # a condition keeps its type
    positions = [i for i, m in enumerate(metas) if i >= first and _is_operand(m)]
    if (dtype := _common_dtype([metas[i] for i in positions], node.meta.get("val"))) is None:
        return args
    if target.name().startswith(_EXACT_BESIDE) and _is_exact(metas[1:2], dtype):
        dtype = torch.float32  # the result is rounded, once
    promoted = list(args)
    numbers_only = not any(isinstance(metas[i], torch.Tensor) for i in positions)
    for i in positions:
        if numbers_only or isinstance(args[i], ir.Value):
            promoted[i] = recorder.cast(args[i], to_onnx_type(dtype))
    return promoted


def _is_exact(second: Sequence[Any], dtype: torch.dtype) -> bool:
    """Whether a second operand, known at run time, has digits that a 16-bit type has not."""
    if dtype not in (torch.float16, torch.bfloat16) or not second:
        return False
    if isinstance(second[0], torch.Tensor):
        return second[0].dim() == 0 and second[0].dtype not in (dtype, torch.bool)
    return isinstance(second[0], torch.SymInt | torch.SymFloat)


def _is_operand(meta: Any) -> bool:
    return isinstance(meta, (torch.Tensor, *_Number)) and not isinstance(meta, bool)


def _common_dtype(operands: Sequence[Any], result: Any) -> torch.dtype | None:
    if not any(isinstance(m, torch.Tensor) for m in (*operands, result)) or not operands:
        return None
    kind = ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT
    common: torch.dtype = elementwise_dtypes(*operands, type_promotion_kind=kind)[1]
    if isinstance(result, torch.Tensor):
        wider = result.dtype
        if wider.is_floating_point and not common.is_floating_point:
            return wider
    return common
