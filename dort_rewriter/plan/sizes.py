"""Sizes that follow from the arguments alone, as data the executor can compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import sympy
import torch
from torch.utils._sympy import functions

from dort_rewriter.signature import InputDim, InputSize, Size, SizeExpression

__all__ = ["ArgumentSizes"]

_OPERATIONS: dict[Any, Literal["add", "mul", "floordiv", "mod", "min", "max"]] = {
    sympy.Add: "add",
    sympy.Mul: "mul",
    functions.FloorDiv: "floordiv",
    functions.CleanDiv: "floordiv",
    functions.Mod: "mod",
    functions.PythonMod: "mod",
    functions.Min: "min",
    functions.Max: "max",
}


class ArgumentSizes:
    """What the arguments of a graph tell about sizes: the way from a symbolic size to them."""

    def __init__(self, arguments: Mapping[torch.fx.Node, int]) -> None:
        self._known: dict[Any, Size] = {}
        values: dict[int, Any] = {i: node.meta.get("val") for node, i in arguments.items()}
        for index, value in values.items():
            if isinstance(value, torch.SymInt):
                self._known.setdefault(value.node.expr, InputSize(index))
        for index, value in values.items():
            if not isinstance(value, torch.Tensor):
                continue
            sizes: Sequence[Any] = value.shape
            for dim, size in enumerate(sizes):
                if isinstance(size, torch.SymInt):
                    self._known.setdefault(size.node.expr, InputDim(index, dim))

    def find(self, size: Any) -> Size | None:
        """How to compute an integer (or the one that a node gives) from the arguments;
        None if they do not tell it."""
        if isinstance(size, torch.fx.Node):
            size = size.meta.get("val")
        if isinstance(size, torch.SymInt):
            return self.express(size.node.expr)
        return size if isinstance(size, int) and not isinstance(size, bool) else None

    def find_all(self, sizes: Any) -> tuple[Size, ...] | None:
        """How to compute each of several integers; None if one is not known."""
        found = tuple(s for size in sizes if (s := self.find(size)) is not None)
        return found if len(found) == len(sizes) else None

    def express(self, expression: Any) -> Size | None:
        """How to compute a symbolic expression from the arguments; None if they do not tell."""
        if (known := self._known.get(expression)) is not None:
            return known
        if isinstance(expression, sympy.Integer):
            return int(expression)
        if isinstance(expression, sympy.Pow):
            base, exponent = expression.args
            if not isinstance(exponent, sympy.Integer) or not 1 < exponent < 8:
                return None
            return self._combine("mul", [base] * int(exponent))
        if isinstance(expression, functions.ModularIndexing):
            base, divisor, modulus = expression.args
            return self._combine("mod", [functions.FloorDiv(base, divisor), modulus])
        operation = _OPERATIONS.get(expression.func)
        return None if operation is None else self._combine(operation, expression.args)

    def _combine(
        self, operation: Literal["add", "mul", "floordiv", "mod", "min", "max"], operands: Any
    ) -> Size | None:
        found = tuple(s for o in operands if (s := self.express(o)) is not None)
        return SizeExpression(operation, found) if len(found) == len(operands) else None
