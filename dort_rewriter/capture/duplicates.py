"""Merge the nodes of a joint graph that compute the same thing, before it is cut in two.

torch's partitioner does it too, but importing what it needs for that (part of Inductor) takes
longer than compiling a model.
"""

from __future__ import annotations

from typing import Any

import torch

from dort_rewriter.aten.aliases import exposed
from dort_rewriter.aten.operators import is_mutation

__all__ = ["merge_duplicates"]


def merge_duplicates(graph: torch.fx.Graph) -> int:
    """Merge equal nodes and return how many are gone.

    Random operators are left alone, and what the results of the graph share their memory with:
    two results are two tensors.
    """
    seen_by_caller = exposed(graph)
    seen: dict[Any, torch.fx.Node] = {}
    writes = merged = 0
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        if is_mutation(node):
            writes += 1  # what reads the same tensor may read something else from here on
            continue
        if node in seen_by_caller or not _is_pure(node.target):
            continue
        key = (node.target, writes, _freeze(node.args), _freeze(node.kwargs))
        first = seen.setdefault(key, node)
        if first is not node:
            node.replace_all_uses_with(first)
            graph.erase_node(node)
            merged += 1
    return merged


def _is_pure(target: Any) -> bool:
    if not isinstance(target, torch._ops.OpOverload):
        return getattr(target, "__module__", "") in ("_operator", "math")
    if target.namespace not in ("aten", "prims"):
        return False
    return torch.Tag.nondeterministic_seeded not in target.tags and "empty" not in target.__name__


def _freeze(value: Any) -> Any:
    """A hashable that is equal for equal arguments: 1, 1.0 and True are not."""
    if isinstance(value, list | tuple):
        return tuple(map(_freeze, value))
    if isinstance(value, dict):
        return tuple(sorted((k, _freeze(v)) for k, v in value.items()))
    if isinstance(value, slice):
        return ("slice", _freeze(value.start), _freeze(value.stop), _freeze(value.step))
    if isinstance(value, float):
        return (float, str(value))  # 0.0 and -0.0 are two, a NaN is itself
    return (type(value), value)
