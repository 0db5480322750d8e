"""Value: a result in the graph under construction, usable like a number in a converter's body."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from dort_rewriter.errors import ExportError

if TYPE_CHECKING:
    from dort_rewriter.export.recorder import Recorder

__all__ = ["Value"]


class Value(ir.Value):
    """An ``onnx_ir`` value that records a node when Python operators are applied to it."""

    __slots__ = ("recorder",)

    def __init__(self, recorder: Recorder, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.recorder = recorder

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
        raise ExportError("The truth value of a graph result is unknown while exporting.")

    def __add__(self, other: Any) -> Value:
        return self.recorder.Add(self, other)

    def __radd__(self, other: Any) -> Value:
        return self.recorder.Add(other, self)

    def __sub__(self, other: Any) -> Value:
        return self.recorder.Sub(self, other)

    def __rsub__(self, other: Any) -> Value:
        return self.recorder.Sub(other, self)

    def __mul__(self, other: Any) -> Value:
        return self.recorder.Mul(self, other)

    def __rmul__(self, other: Any) -> Value:
        return self.recorder.Mul(other, self)

    def __truediv__(self, other: Any) -> Value:
        return self.recorder.Div(self, other)

    def __rtruediv__(self, other: Any) -> Value:
        return self.recorder.Div(other, self)

    def __mod__(self, other: Any) -> Value:
        return self.recorder.Mod(self, other)

    def __pow__(self, other: Any) -> Value:
        return self.recorder.Pow(self, other)

    def __matmul__(self, other: Any) -> Value:
        return self.recorder.MatMul(self, other)

    def __neg__(self) -> Value:
        return self.recorder.Neg(self)

    def __invert__(self) -> Value:
        return self.recorder.Not(self)

    def __and__(self, other: Any) -> Value:
        return self.recorder.And(self, other)

    def __or__(self, other: Any) -> Value:
        return self.recorder.Or(self, other)

    def __lt__(self, other: Any) -> Value:
        return self.recorder.Less(self, other)

    def __le__(self, other: Any) -> Value:
        return self.recorder.LessOrEqual(self, other)

    def __gt__(self, other: Any) -> Value:
        return self.recorder.Greater(self, other)

    def __ge__(self, other: Any) -> Value:
        return self.recorder.GreaterOrEqual(self, other)
