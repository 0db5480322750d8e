"""Compute at export what depends on small constants only: mostly shapes.

NOTE: only exact operations stand here. Floating-point arithmetic is left to the runtime, so that a
folded graph gives the same bits as an unfolded one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

__all__ = ["FOLDABLE", "LIMIT", "fold"]

LIMIT = 64
"""Elements above which a constant is left alone."""

Array = np.ndarray[Any, Any]
Attributes = Mapping[str, Any]


def _axes(xs: Sequence[Array]) -> tuple[int, ...] | None:
    return tuple(int(a) for a in xs[1].ravel()) if len(xs) > 1 else None


def _reshape(xs: Sequence[Array], attributes: Attributes) -> Array | None:
    target = [int(d) for d in xs[1].ravel()]
    if 0 in target:
        return None
    return xs[0].reshape(target)


def _integers(
    function: Callable[..., Any],
) -> Callable[[Sequence[Array], Attributes], Array | None]:
    def compute(xs: Sequence[Array], attributes: Attributes) -> Array | None:
        if any(x.dtype != np.int64 for x in xs):
            return None
        return np.asarray(function(*xs))

    return compute


def _divide(a: Array, b: Array) -> Array:
    return (np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b))).astype(np.int64)  # truncates


def _slice(xs: Sequence[Array], attributes: Attributes) -> Array | None:
    axes = [int(a) for a in xs[3].ravel()] if len(xs) > 3 else list(range(len(xs[1])))
    steps = [int(s) for s in xs[4].ravel()] if len(xs) > 4 else [1] * len(axes)
    if any(s < 0 for s in steps):
        return None
    index = [slice(None)] * xs[0].ndim
    for axis, start, end, step in zip(axes, xs[1].ravel(), xs[2].ravel(), steps, strict=True):
        index[axis] = slice(int(start), int(end), step)
    return xs[0][tuple(index)]


FOLDABLE: dict[str, Callable[[Sequence[Array], Attributes], Array | None]] = {
    "Identity": lambda xs, a: xs[0],
    "Reshape": _reshape,
    "Concat": lambda xs, a: np.concatenate(xs, a["axis"]),
    "Squeeze": lambda xs, a: np.squeeze(xs[0], _axes(xs)),
    "Unsqueeze": lambda xs, a: np.expand_dims(xs[0], _axes(xs) or ()),
    "Gather": lambda xs, a: np.take(xs[0], xs[1], axis=a.get("axis", 0)),
    "Slice": _slice,
    "Size": lambda xs, a: np.asarray(xs[0].size, dtype=np.int64),
    "Add": _integers(np.add),
    "Sub": _integers(np.subtract),
    "Mul": _integers(np.multiply),
    "Neg": _integers(np.negative),
    "Min": _integers(np.minimum),
    "Max": _integers(np.maximum),
    "Div": _integers(_divide),
}


def fold(
    op: str, inputs: Sequence[ir.Value | None], attributes: Attributes
) -> ir.Tensor[Any] | None:
    """The constant result of a node, or None when it is not one or not worth it."""
    if (compute := FOLDABLE.get(op)) is None and op != "Cast":
        return None
    constants = [None if v is None else v.const_value for v in inputs]
    if not constants or any(c is None or c.size > LIMIT for c in constants):
        return None
    arrays = [c.numpy() for c in constants if c is not None]
    first = constants[0]
    assert first is not None
    if op == "Cast":
        dtype = ir.DataType(int(attributes["to"]))
        if (arrays[0].dtype.kind == "f" and not dtype.is_floating_point()) or dtype.bitwidth < 8:
            return None  # out-of-range conversions are the runtime's to define
        return ir.Tensor(np.asarray(arrays[0].astype(dtype.numpy())), dtype=dtype)
    assert compute is not None
    result = compute(arrays, attributes)
    if result is None or result.size > LIMIT:
        return None
    dtype = ir.DataType.INT64 if op == "Size" else first.dtype
    return ir.Tensor(np.ascontiguousarray(result).reshape(result.shape), dtype=dtype)
