"""Value: a result in the graph under construction, usable like a number in a converter's body."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import onnx_ir as ir

from dort_rewriter.errors import ExportError


class Records(Protocol):
    """What has the operators of ONNX as methods: a ``Writer``."""

    def __getattr__(self, name: str, /) -> Callable[..., Any]:
        """An operator: calling it records a node."""
        ...


def _binary(name: str, *, swapped: bool = False) -> Callable[[Value, Any], Value]:
    """A Python operator of two operands, as one of ONNX."""

    def record(self: Value, other: Any) -> Value:
        record: Callable[..., Value] = getattr(self.writer, name)
        return record(other, self) if swapped else record(self, other)

    return record


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

    __add__ = _binary("Add")
    __radd__ = _binary("Add", swapped=True)
    __sub__ = _binary("Sub")
    __rsub__ = _binary("Sub", swapped=True)
    __mul__ = _binary("Mul")
    __rmul__ = _binary("Mul", swapped=True)
    __truediv__ = _binary("Div")
    __rtruediv__ = _binary("Div", swapped=True)
    __mod__ = _binary("Mod")
    __pow__ = _binary("Pow")
    __matmul__ = _binary("MatMul")
    __and__ = _binary("And")
    __or__ = _binary("Or")
    __lt__ = _binary("Less")
    __le__ = _binary("LessOrEqual")
    __gt__ = _binary("Greater")
    __ge__ = _binary("GreaterOrEqual")

    def __neg__(self) -> Value:
        return self.writer.Neg(self)

    def __invert__(self) -> Value:
        return self.writer.Not(self)
