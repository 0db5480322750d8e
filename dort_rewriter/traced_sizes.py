"""Sizes and strides of traced tensors, which may be symbols: what is known without a guard.

A size that is counted at run time (``nonzero``, ``x[x > 0]``, ``item``) has a symbol and no value:
whoever asks torch for one, or whether a tensor of such a size is contiguous, gets an exception.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
import torch
from torch.fx.experimental.sym_node import SymNode
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils._sympy.functions import Max

__all__ = ["hint_of", "is_contiguous", "is_same_size", "is_same_stride"]

COUNTED = 8191
"""What a size that is counted at run time is taken for: large, so that it orders strides."""


def hint_of(size: Any, counted: int = COUNTED) -> int:
    """A size; for a symbolic one what it was when it was traced, or would be if what is counted
    at run time was ``counted``."""
    if isinstance(size, int):
        return size
    if not _is_counted(size):
        return int(size.node.hint)
    symbols = free_unbacked_symbols(size.node.expr)
    supposed = size.node.expr.xreplace(dict.fromkeys(symbols, sympy.Integer(counted)))
    hint: Any = SymNode(supposed, size.node.shape_env, int, None).hint
    return int(hint)


def is_same_size(a: Any, b: Any) -> bool:
    """Whether two sizes are known to be equal, without a guard on them."""
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    return bool(_expression(a) == _expression(b))


def is_same_stride(a: Any, b: Any) -> bool:
    """Whether two strides are known to be equal for all tensors that have an element.

    torch spells that of a row of counted length ``Max(1, u0)``, or ``u0``.
    """
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    return bool(_of_elements(_expression(a)) == _of_elements(_expression(b)))


def is_contiguous(tensor: torch.Tensor) -> bool:
    """Whether a tensor is row-major without gaps, whatever is counted at run time."""
    if not any(map(_is_counted, (*tensor.shape, *tensor.stride()))):
        return tensor.is_contiguous()
    return _is_row_major(tensor.shape, tensor.stride())


def _is_row_major(shape: Sequence[Any], strides: Sequence[Any]) -> bool:
    if any(is_same_size(size, 0) for size in shape):
        return True
    step: Any = 1
    for size, stride in reversed([*zip(shape, strides, strict=True)]):
        if is_same_size(size, 1):
            continue
        if not is_same_stride(stride, step):
            return False
        step = step * size
    return True


def _is_counted(size: Any) -> bool:
    return isinstance(size, torch.SymInt) and bool(free_unbacked_symbols(size.node.expr))


def _expression(size: Any) -> Any:
    return size.node.expr if isinstance(size, torch.SymInt) else sympy.Integer(size)


def _of_elements(stride: Any) -> Any:
    """A stride where no size is zero."""
    return stride.replace(Max, lambda *sizes: Max(*(s for s in sizes if s != 1)))
