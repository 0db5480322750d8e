"""How tensors lie in memory: what their strides tell about a graph's arguments and results."""

from __future__ import annotations

from typing import Any

import torch

from dort_rewriter.signature import ViewStep

__all__ = ["input_orders", "is_dense", "storage_order", "strided_view"]


def is_dense(value: Any) -> bool:
    """Tell whether a tensor fills its memory, in some order of its dimensions."""
    if not isinstance(value, torch.Tensor):
        return False
    return value.is_contiguous() or storage_order(value) is not None


def storage_order(value: Any) -> tuple[int, ...] | None:
    """Return the dimensions from the slowest to the fastest in memory; None when row-major.

    None also when the tensor does not fill its memory.
    """
    if not isinstance(value, torch.Tensor) or value.is_contiguous():
        return None
    strides = value.stride()
    if not all(isinstance(s, int) for s in (*strides, *value.shape)):
        strides = tuple(_hint(s) for s in strides)
    order = tuple(sorted(range(value.dim()), key=lambda i: (-strides[i], i)))
    if not value.permute(order).is_contiguous():
        return None
    return order


def input_orders(graph_module: torch.fx.GraphModule) -> dict[str, tuple[int, ...]]:
    """Return how the arguments of a graph lie in memory that are not row-major, by placeholder."""
    found = {}
    for node in graph_module.graph.nodes:
        if node.op != "placeholder":
            continue
        order = storage_order(node.meta.get("val"))
        if order is not None:
            found[node.name] = order
    return found


def strided_view(base: Any, view: Any) -> tuple[ViewStep, ...] | None:
    """Return how a result is seen in the memory of what was computed: in one step, or in none.

    ``base`` is returned by the model in the order it is stored in. None when the layout of either
    is not known to the number.
    """
    if not (is_dense(base) and _is_known(base) and _is_known(view)):
        return None
    order = storage_order(base)
    stored = base if order is None else base.permute(order)
    offset = view.storage_offset() - base.storage_offset()
    layout = (tuple(view.shape), tuple(view.stride()), offset)
    if layout == (tuple(stored.shape), tuple(stored.stride()), 0):
        return ()
    return (ViewStep("aten::as_strided", layout),)


def _is_known(value: Any) -> bool:
    if not isinstance(value, torch.Tensor):
        return False
    numbers = (*value.shape, *value.stride(), value.storage_offset())
    return all(isinstance(n, int) for n in numbers)


def _hint(size: Any) -> int:
    return size if isinstance(size, int) else int(size.node.hint)
