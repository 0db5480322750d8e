"""Complex tensors of one number, and copies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dort_rewriter.export.complex_numbers.pairs import Complex, pairs_of
from dort_rewriter.export.recorder import Recorder
from dort_rewriter.graph.values import Value

__all__ = ["CREATING"]


def _copy(op: Recorder, x: Any, source: Any) -> Value:
    return op.Expand(pairs_of(op, source, op.dtype), op.vector([*_sizes(op, x), 2]))


def _sizes(op: Recorder, x: Any) -> list[int | Value]:
    value, rank = (x.pairs, x.rank) if isinstance(x, Complex) else (x, x.rank)
    return [op.size(value, axis) for axis in range(rank)]


def _filled(op: Recorder, sizes: Sequence[Any], number: Any) -> Value:
    return op.Expand(pairs_of(op, number, op.dtype), op.vector([*sizes, 2]))


def _full(op: Recorder, size: Sequence[Any], number: Any, *, dtype: Any = None) -> Value:
    return _filled(op, size, number)


def _full_like(op: Recorder, x: Any, number: Any, *, dtype: Any = None) -> Value:
    return _filled(op, _sizes(op, x), number)


def _new_full(
    op: Recorder, x: Any, size: Sequence[Any], number: Any, *, dtype: Any = None
) -> Value:
    return _filled(op, size, number)


def _made(number: int) -> Mapping[str, Callable[..., Any]]:
    """What makes a tensor of one number; one of no number in particular is made of zeros."""
    base = {0: "zeros", 1: "ones"}[number]

    def made(op: Recorder, size: Sequence[Any], stride: Any = None, *, dtype: Any = None) -> Value:
        return _filled(op, size, number)

    def like(op: Recorder, x: Any, *, dtype: Any = None) -> Value:
        return _filled(op, _sizes(op, x), number)

    def new(
        op: Recorder, x: Any, size: Sequence[Any], stride: Any = None, *, dtype: Any = None
    ) -> Value:
        return _filled(op, size, number)

    found: dict[str, Callable[..., Any]] = {
        f"aten::{base}": made,
        f"aten::{base}_like": like,
        f"aten::new_{base}": new,
    }
    if number == 0:
        found |= dict.fromkeys(("aten::empty.memory_format", "aten::empty_strided"), made)
        found |= dict.fromkeys(("aten::empty_like", "aten::zero"), like)
        found |= dict.fromkeys(("aten::new_empty", "aten::new_empty_strided"), new)
    return found


CREATING: Mapping[str, Callable[..., Any]] = {
    **_made(0),
    **_made(1),
    "aten::copy": _copy,
    "aten::full": _full,
    "aten::full_like": _full_like,
    "aten::new_full": _new_full,
}
