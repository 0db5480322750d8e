"""How tensors lie in memory: what their strides tell about a graph's arguments and results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dort_rewriter.signature import inverse_order
from dort_rewriter.traced_sizes import hint_of, is_contiguous, is_same_size, is_same_stride

__all__ = [
    "covers",
    "input_orders",
    "is_dense",
    "lies_as_ordered",
    "overlapping",
    "overlaps",
    "storage_order",
]


def is_dense(value: Any) -> bool:
    """Whether a tensor fills its memory, in some order of its dimensions."""
    if not isinstance(value, torch.Tensor):
        return False
    return is_contiguous(value) or storage_order(value) is not None


def storage_order(value: Any) -> tuple[int, ...] | None:
    """The dimensions from the slowest to the fastest in memory; None when row-major.

    None also when the tensor does not fill its memory.
    """
    if not isinstance(value, torch.Tensor) or is_contiguous(value):
        return None
    strides = [hint_of(s) for s in value.stride()]
    order = tuple(sorted(range(value.dim()), key=lambda i: (-strides[i], i)))
    return order if is_contiguous(value.permute(order)) else None


def input_orders(graph_module: torch.fx.GraphModule) -> dict[str, tuple[int, ...]]:
    """How the arguments of a graph lie in memory that are not row-major, by placeholder."""
    found = {}
    for node in graph_module.graph.nodes:
        if node.op != "placeholder":
            continue
        order = storage_order(node.meta.get("val"))
        if order is not None:
            found[node.name] = order
    return found


def lies_as_ordered(value: torch.Tensor, order: Sequence[int] | None) -> bool:
    """Whether a tensor has the strides of one made row-major and permuted back.

    NOTE: the strides of dimensions of size one, and of tensors without an element, may be any.
    """
    shape = value.shape if order is None else [value.shape[i] for i in order]
    strides: list[Any] = []
    step: Any = 1
    for size in reversed(shape):
        strides.insert(0, step)
        step = step * (max(size, 1) if isinstance(size, int) else size)
    if order is not None:
        strides = [strides[i] for i in inverse_order(order)]
    return all(is_same_stride(a, b) for a, b in zip(value.stride(), strides, strict=True))


def covers(base: torch.Tensor, view: torch.Tensor) -> bool:
    """Whether a view shows as many elements as its base has: returning the base instead
    costs no memory."""
    shown: Any = 1
    for size, stride in zip(view.shape, view.stride(), strict=True):
        if not is_same_size(stride, 0):
            shown = shown * size
    return base.dtype is view.dtype and is_same_size(shown, base.numel())


def overlaps(value: torch.Tensor) -> bool:
    """Whether several elements of a tensor may be one in memory, for the sizes at hand."""
    return overlapping(value.shape, value.stride())


def overlapping(shape: Sequence[Any], strides: Sequence[Any]) -> bool:
    """Whether several elements may be one in memory, for the sizes at hand."""
    pairs = zip(map(hint_of, strides), map(hint_of, shape), strict=True)
    end = 0
    for stride, size in sorted(p for p in pairs if p[1] != 1):
        if stride <= end:
            return True
        end += stride * (size - 1)
    return False
