"""Operators on lists of tensors (``_foreach_add``): the same operator on one tensor at a time.

torch's optimizers are made of them. A list argument is read position by position, another one is
the same for all; torch computes them that way too where it has no fused kernel.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

__all__ = ["foreach_decompositions"]

aten = torch.ops.aten

_NAMES = (
    "abs acos add addcdiv addcmul asin atan ceil clamp_max clamp_min clone copy cos cosh div erf "
    "erfc exp expm1 floor frac lerp lgamma log log10 log1p log2 maximum minimum mul neg pow "
    "reciprocal round rsqrt sigmoid sign sin sinh sqrt sub tan tanh trunc"
).split()
"""Operators whose ``_foreach_`` form has the same arguments, lists or not."""


def foreach_decompositions() -> dict[Any, Callable[..., Any]]:
    """A decomposition of every operator on lists that this torch has."""
    table: dict[Any, Callable[..., Any]] = {}
    for name in _NAMES:
        packet = getattr(aten, f"_foreach_{name}", None)
        for overload in [] if packet is None else packet.overloads():
            op = getattr(packet, overload)
            if not op._schema.is_mutable and (name, overload) not in _FROM_TENSOR:
                table[op] = functools.partial(_one_by_one, _on_one(name, op._schema))
    return {**table, aten._foreach_zero.default: _zero, aten._foreach_norm.Scalar: _norm}


_FROM_TENSOR = {("addcdiv", "Tensor"), ("addcmul", "Tensor")}
"""These read Python numbers out of a tensor, one for each position."""


def _on_one(name: str, schema: torch._C.FunctionSchema) -> Callable[..., torch.Tensor]:
    """What the operator does to one tensor."""
    if name in ("addcdiv", "addcmul"):
        function = getattr(aten, name)
        return lambda x, one, two, value=1: function(x, one, two, value=value)
    if name in ("maximum", "minimum") and schema.overload_name.startswith("Scalar"):
        return aten.clamp_min if name == "maximum" else aten.clamp_max
    return getattr(aten, name)


def _one_by_one(
    function: Callable[..., torch.Tensor], *args: Any, **kwargs: Any
) -> list[torch.Tensor]:
    count = len(next(a for a in args if isinstance(a, list | tuple)))
    each = [a if isinstance(a, list | tuple) else [a] * count for a in args]
    return [function(*own, **kwargs) for own in zip(*each, strict=True)]


def _zero(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [torch.zeros_like(t) for t in tensors]


def _norm(
    tensors: Sequence[torch.Tensor], ord: float = 2, dtype: torch.dtype | None = None
) -> list[torch.Tensor]:
    return [torch.linalg.vector_norm(t, ord, dtype=dtype) for t in tensors]
