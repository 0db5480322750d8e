"""Quotients of integers, which torch 2.8 records as integers where sizes are symbolic."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

__all__ = ["correct_quotients"]

aten = torch.ops.aten

_QUOTIENTS = frozenset({aten.div.Tensor, aten.div.Scalar})


def correct_quotients(graph: torch.fx.Graph) -> None:
    """Give quotients the type that kernels give them, and what is computed of them its own."""
    corrected: set[torch.fx.Node] = set()
    for node in graph.nodes:
        value = node.meta.get("val")
        if node.target in _QUOTIENTS and isinstance(value, torch.Tensor) and _is_whole(value):
            node.meta["val"] = _like(value, torch.get_default_dtype())
        elif _is_operator(node) and not corrected.isdisjoint(node.all_input_nodes):
            leaves, structure = tree_flatten(value)
            computed = tree_leaves(_computed(node))
            changed = [_of_type(a, b) for a, b in zip(leaves, computed, strict=True)]
            if any(a is not b for a, b in zip(leaves, changed, strict=True)):
                node.meta["val"] = tree_unflatten(changed, structure)
        if node.meta.get("val") is not value:
            corrected.add(node)


def _is_whole(value: torch.Tensor) -> bool:
    return not (value.is_floating_point() or value.is_complex())


def _is_operator(node: torch.fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) or node.target is operator.getitem


def _computed(node: torch.fx.Node) -> Any:
    """What an operator gives for the values of its arguments."""
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
    return node.target(*args, **kwargs)  # type: ignore[operator]  # it is a function


def _of_type(recorded: Any, computed: Any) -> Any:
    """A recorded value, as it is unless its type is another one: its sizes have their names."""
    if not isinstance(recorded, torch.Tensor) or recorded.dtype is computed.dtype:
        return recorded
    return _like(recorded, computed.dtype)


def _like(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    # NOTE: what is a view of a part lies where it lay; ``to`` would let it begin at zero.
    whole = value.new_empty((value.untyped_storage().nbytes() // value.itemsize,), dtype=dtype)
    return whole.as_strided(value.shape, value.stride(), value.storage_offset())
