"""Masks of attention that are known when a graph is compiled: the causal one, and none at all.

A model that is traced writes its mask out, with ranges and comparisons, where in eager mode it may
only say that it is causal. Said so again, kernels leave out the half of the scores that counts
for nothing, and there is no mask to make, to read and to keep for the backward graph.

NOTE: what is masked and infinite or NaN makes NaN of each row that a mask is added to; a causal
kernel does not look at it.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import torch
from torch.utils._python_dispatch import _disable_current_modes

from dort_rewriter.aten.operators import is_mutation, is_random

__all__ = ["name_known_masks"]

aten = torch.ops.aten

_FLASH = aten._scaled_dot_product_flash_attention_for_cpu.default
_FLASH_BACKWARD = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
_CAUSAL: Mapping[Any, int] = {_FLASH: 4, _FLASH_BACKWARD: 7}
"""Where the operators say whether they are causal."""

_MOST = 1 << 26
"""Elements of the largest mask that is looked at: 8,192 tokens."""

Known: TypeAlias = Literal["causal", "none"]


def name_known_masks(graph: torch.fx.Graph) -> int:
    """Let attention whose mask is causal say so, and leave out masks that mask nothing.

    Returns how many masks are gone.
    """
    found: dict[torch.fx.Node, Known | None] = {}
    for node in graph.nodes:
        mask = node.kwargs.get("attn_mask")
        if node.target not in _CAUSAL or mask is None or _is_causal(node):
            continue
        if mask not in found:
            found[mask] = _kind_of(mask)
        if found[mask] is not None:
            _say(node, is_causal=found[mask] == "causal")
    for mask, kind in found.items():
        if kind is not None:
            _erase_unused(graph, mask)
    return sum(kind is not None for kind in found.values())


def _is_causal(node: torch.fx.Node) -> bool:
    place = _CAUSAL[node.target]
    given = node.args[place] if len(node.args) > place else node.kwargs.get("is_causal", False)
    return bool(given)


def _say(node: torch.fx.Node, *, is_causal: bool) -> None:
    """Let an attention have no mask but the causal one, if that."""
    node.update_kwarg("attn_mask", None)
    place = _CAUSAL[node.target]
    if len(node.args) > place:
        node.update_arg(place, is_causal)
    else:
        node.update_kwarg("is_causal", is_causal)


def _erase_unused(graph: torch.fx.Graph, node: torch.fx.Node) -> None:
    """Erase an unused node, and what is unused without it."""
    waiting = [node]
    while waiting:
        last = waiting.pop()
        if last.op == "call_function" and not last.users and not last._erased:
            waiting.extend(last.all_input_nodes)
            graph.erase_node(last)


def _kind_of(mask: torch.fx.Node) -> Known | None:
    """What is known of a mask, if it depends on no argument."""
    value = mask.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.dim() < 2 or not value.is_floating_point():
        return None
    steps = _steps_to(mask)
    if steps is None:
        return None
    with _disable_current_modes(), torch.no_grad(), torch.autocast("cpu", enabled=False):
        return _recognize(_compute(steps))


def _steps_to(node: torch.fx.Node) -> list[torch.fx.Node] | None:
    """What computes a node, in order; None if that reads an argument or is not to be run here."""
    needed = {node}
    steps = []
    for step in reversed(node.graph.nodes):
        if step not in needed:
            continue
        if not _may_run(step):
            return None
        needed.update(step.all_input_nodes)
        steps.append(step)
    return steps[::-1]


def _may_run(node: torch.fx.Node) -> bool:
    """Whether a node is a known operator that only computes, on the CPU, of moderate size."""
    if node.op != "call_function":
        return False
    if node.target is operator.getitem:
        return True
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or target.namespace not in ("aten", "prims"):
        return False
    if is_mutation(node) or is_random(node):
        return False
    values = torch.utils._pytree.tree_leaves(node.meta.get("val"))
    return all(
        isinstance(v, torch.Tensor)
        and v.device.type == "cpu"
        and all(isinstance(size, int) for size in v.shape)
        and v.numel() <= _MOST
        for v in values
    )


def _compute(steps: list[torch.fx.Node]) -> torch.Tensor:
    """Run nodes, dropping each value behind the last that reads it."""
    last = {given: step for step in steps for given in step.all_input_nodes}
    values: dict[torch.fx.Node, Any] = {}
    for step in steps:
        args, kwargs = torch.fx.map_arg((step.args, step.kwargs), values.__getitem__)
        values[step] = step.target(*args, **kwargs)  # type: ignore[operator]
        for given in step.all_input_nodes:
            if last[given] is step:
                values.pop(given, None)
    result: torch.Tensor = values[steps[-1]]
    return result


def _recognize(mask: torch.Tensor) -> Known | None:
    for axis in range(mask.dim() - 2):
        if mask.stride(axis) == 0:  # all of them are one
            mask = mask.narrow(axis, 0, min(mask.shape[axis], 1))
    seen = mask == 0
    if seen.all():
        return "none"
    # The smallest number hides as well as infinity does; not so that of float16.
    lowest = torch.finfo(torch.float32 if mask.dtype is torch.float16 else mask.dtype).min
    causal = torch.ones(mask.shape[-2:], dtype=torch.bool).tril_()
    if (seen == causal).all() and ((mask <= lowest) | causal).all():
        return "causal"
    return None
