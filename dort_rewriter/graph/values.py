"""Value: a result in the graph under construction, usable like a number in a converter's body."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import onnx_ir as ir

from dort_rewriter.errors import ExportError

__all__ = ["Records", "Value"]


class Records(Protocol):
    """What has the operators of ONNX as methods: a ``Writer``."""

    def __getattr__(self, name: str, /) -> Callable[..., Any]:
        """An operator: calling it records a node."""
        ...


class Value(ir.Value):
    """An ``onnx_ir`` value that records a node when Python operators are applied to it."""

    __slots__ = ("writer",)

    def __init__(self, writer: Records, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.writer = writer

    @property
    def rank(self) -> int:
        """The number of dimensions; an ExportError when it is unknown."""
        if self.shape is None:
            raise ExportError(f"The rank of {self.name or 'an intermediate result'} is unknown.")
        return len(self.shape)

    @property
    def dims(self) -> tuple[int | ir.SymbolicDim, ...]:
        """The sizes; an ExportError when they are unknown."""
        if self.shape is None:
            raise ExportError(f"The shape of {self.name or 'an intermediate result'} is unknown.")
        return tuple(self.shape)

    def __bool__(self) -> bool:
        # NOTE: without this, a data-dependent `if` in a converter would silently take one branch.
        raise ExportError(
            "The truth value of a graph result is unknown while exporting: compute both cases and "
            "choose by Where(condition, a, b)."
        )

    def __add__(self, other: Any) -> Value:
        return self.writer.Add(self, other)

    def __radd__(self, other: Any) -> Value:
        return self.writer.Add(other, self)

    def __sub__(self, other: Any) -> Value:
        return self.writer.Sub(self, other)

    def __rsub__(self, other: Any) -> Value:
        return self.writer.Sub(other, self)

    def __mul__(self, other: Any) -> Value:
        return self.writer.Mul(self, other)

    def __rmul__(self, other: Any) -> Value:
        return self.writer.Mul(other, self)

    def __truediv__(self, other: Any) -> Value:
        return self.writer.Div(self, other)

    def __rtruediv__(self, other: Any) -> Value:
        return self.writer.Div(other, self)

    def __mod__(self, other: Any) -> Value:
        return self.writer.Mod(self, other)

    def __pow__(self, other: Any) -> Value:
        return self.writer.Pow(self, other)

    def __matmul__(self, other: Any) -> Value:
        return self.writer.MatMul(self, other)

    def __neg__(self) -> Value:
        return self.writer.Neg(self)

    def __invert__(self) -> Value:
        return self.writer.Not(self)

    def __and__(self, other: Any) -> Value:
        return self.writer.And(self, other)

    def __or__(self, other: Any) -> Value:
        return self.writer.Or(self, other)

    def __lt__(self, other: Any) -> Value:
        return self.writer.Less(self, other)

    def __le__(self, other: Any) -> Value:
        return self.writer.LessOrEqual(self, other)

    def __gt__(self, other: Any) -> Value:
        return self.writer.Greater(self, other)

    def __ge__(self, other: Any) -> Value:
        return self.writer.GreaterOrEqual(self, other)
