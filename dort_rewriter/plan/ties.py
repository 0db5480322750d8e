"""Which nodes of a graph choose among equal elements as only torch's own kernels do.

torch promises nothing about ties here; ONNX takes the first of equal elements. Our kernel `Order`
does what torch's kernels for the CPU do; where it cannot be used, the node stays in torch.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

from dort_rewriter.kernels.operators import OWN_MOST_AXES

__all__ = ["TIES", "has_torchs_order"]

TIES = "which of equal elements comes first is the choice of torch's kernel"
"""Why such a node is not in a model."""

_MANY = 32768
"""From so many integers on torch sorts another way, if it was built with that."""

_ORDER = frozenset({"aten::topk", "aten::sort", "aten::sort.stable", "aten::mode"})
"""What our kernel can do."""


def has_torchs_order(node: torch.fx.Node, name: str, *, has_kernel: Callable[[], bool]) -> bool:
    """Whether a result that is used depends on an order that only torch's kernels know.

    `has_kernel` tells whether our kernel is there, which is for the CPU; it is asked last.
    """
    if name not in _ORDER and name != "aten::kthvalue":
        return False
    value = node.all_input_nodes[0].meta.get("val")
    if not isinstance(value, torch.Tensor) or value.ndim == 0:
        return False
    if _argument(node, "stable") or not _is_chosen(node, name):
        return False
    fits = name in _ORDER and value.device.type == "cpu" and value.ndim <= OWN_MOST_AXES
    return not fits or _is_radix_sort(node, name, value) or not has_kernel()


def _is_chosen(node: torch.fx.Node, name: str) -> bool:
    """Whether ties show in what is used: in the indices, or in values that are not sorted."""
    if name == "aten::topk" and not _argument(node, "sorted"):
        return True
    return any(u.target is not operator.getitem or u.args[1] == 1 for u in node.users)


def _is_radix_sort(node: torch.fx.Node, name: str, value: torch.Tensor) -> bool:
    if not name.startswith("aten::sort") or value.ndim != 1 or _argument(node, "descending"):
        return False
    if value.dtype is torch.bool or value.dtype.is_floating_point:
        return False
    size = value.shape[0]
    return not isinstance(size, int) or size >= _MANY


def _argument(node: torch.fx.Node, name: str) -> Any:
    """An argument of a call, or its default; None when the operator has none."""
    assert isinstance(node.target, torch._ops.OpOverload)
    for i, formal in enumerate(node.target._schema.arguments):
        if formal.name == name:
            given = node.args[i] if i < len(node.args) and not formal.kwarg_only else None
            return node.kwargs.get(name, formal.default_value if given is None else given)
    return None
