"""Sizes that follow from the arguments alone, as data the executor can compute."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any, Literal

import torch

from dort_rewriter.signature import InputDim, InputSize, Size, SizeExpression

__all__ = ["as_size"]

_OPERATIONS: dict[Any, Literal["add", "sub", "mul", "floordiv", "mod", "min", "max"]] = {
    operator.add: "add",
    operator.sub: "sub",
    operator.mul: "mul",
    operator.floordiv: "floordiv",
    operator.mod: "mod",
    torch.sym_min: "min",
    torch.sym_max: "max",
}


def as_size(value: Any, arguments: Mapping[torch.fx.Node, int]) -> Size | None:
    """Return the integer a node computes, if it does from the arguments; None otherwise."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if not isinstance(value, torch.fx.Node):
        return None
    if value in arguments:
        return InputSize(arguments[value]) if _is_integer(value.meta.get("val")) else None
    if value.target is torch.ops.aten.sym_size.int:
        base, dim = value.args
        if isinstance(base, torch.fx.Node) and base in arguments and isinstance(dim, int):
            return InputDim(arguments[base], dim)
        return None
    if (operation := _OPERATIONS.get(value.target)) is None or value.kwargs:
        return None
    operands = [as_size(a, arguments) for a in value.args]
    if any(o is None for o in operands):
        return None
    return SizeExpression(operation, tuple(o for o in operands if o is not None))


def _is_integer(value: Any) -> bool:
    return isinstance(value, int | torch.SymInt) and not isinstance(value, bool)
