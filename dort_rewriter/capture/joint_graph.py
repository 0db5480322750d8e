"""A joint graph before it is cut in two: what need not be computed twice, and what is saved.

Equal nodes are merged: torch's partitioner does it too, but importing what it needs for that (part
of Inductor) takes longer than compiling a model. Copies that cannot be told from what they copy
are left out: those of a dropout with a probability of zero, say, which would be saved as well as
what they copy.

Masks of attention that are known when a graph is compiled are named: the causal one, and none at
all. A model that is traced writes its mask out, with ranges and comparisons, where in eager mode
it may only say that it is causal. Said so again, kernels leave out the half of the scores that
counts for nothing, and there is no mask to make, to read and to keep for the backward graph.

The partitioner is given what a backward graph reads and must not recompute.

NOTE: what is masked and infinite or NaN makes NaN of each row that a mask is added to; a causal
kernel does not look at it.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Mapping, Set
from typing import Any, Literal, TypeAlias

import torch
import torch.utils.checkpoint
from torch.utils._python_dispatch import _disable_current_modes

from dort_rewriter.aten import (
    ancestors,
    exposed,
    is_mutation,
    is_random,
    owners_of,
    results_of,
)

aten = torch.ops.aten


def merge_duplicates(graph: torch.fx.Graph) -> int:
    """Merge equal nodes and return how many are gone.

    Random operators are left alone, and what the results of the graph share their memory with:
    two results are two tensors.
    """
    seen_by_caller = exposed(graph)
    seen: dict[Any, torch.fx.Node] = {}
    writing = set(filter(is_mutation, graph.nodes))
    writes = merged = 0
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        if node in writing:
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


def drop_copies(graph: torch.fx.Graph) -> int:
    """Let what reads a copy read what was copied, and return how many copies are gone.

    A copy stays when the caller may see it or its source, and change one of them, and when the
    source is an argument, or a view, whose layout the copy may change.
    """
    nodes = list(graph.nodes)
    if any(map(is_mutation, nodes)):
        return 0
    seen_by_caller, owners = exposed(graph), owners_of(graph)
    dropped = 0
    for node in nodes:
        if node.op != "call_function" or node.target is not aten.clone.default or node.kwargs:
            continue
        source = node.args[0]
        fresh = source.op == "call_function" and owners[source] is source
        if fresh and node not in seen_by_caller and source not in seen_by_caller:
            node.replace_all_uses_with(source)
            graph.erase_node(node)
            dropped += 1
    return dropped


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
    needed = ancestors([node])
    steps = [step for step in node.graph.nodes if step in needed]
    return steps if all(map(_may_run, steps)) else None


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
    return values[steps[-1]]


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


def mark_saved(graph: torch.fx.Graph, forward: int, updated: int) -> int:
    """Mark the values of a joint graph that its backward part reads as the forward part left them.

    Returns how many they are.

    `forward` is how many of its results are those of the forward part; so many of the first as
    are `updated` may be new values of arguments.
    A checkpoint of the user keeps its own marks, but for what would be another value.
    """
    policy = getattr(torch.utils.checkpoint, "CheckpointPolicy", None)
    if policy is None:  # torch 2.3
        return 0
    written = _copied_first(graph) | _without_gradient(graph, forward, updated)
    saved, normalized = [*_compared(graph), *_of_written(graph, written)], _normalized(graph)
    for node in saved:
        node.meta.setdefault("recompute", policy.MUST_SAVE)
    for node in normalized:
        node.meta["recompute"] = policy.MUST_SAVE
    return len({*saved, *normalized})


def _compared(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    """The numbers that the backward graph looks for.

    The gradient of a median or a maximum goes where its argument is equal to it: to nowhere, and
    is NaN, if a bit of the argument differs the second time.
    """
    found = []
    for node in graph.nodes:
        if node.target is not aten.eq.Tensor:
            continue
        for argument in node.all_input_nodes:
            value = argument.meta.get("val")
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                # NOTE: one of several results is computed again where all of them are.
                several = argument.target is operator.getitem
                found.append(argument.all_input_nodes[0] if several else argument)
    return found


def _normalized(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    """What batch norms in training gave: to compute it again, the backward graph would read the
    running statistics, which were written to meanwhile."""
    norms = [
        n for n in graph.nodes if n.target is aten._native_batch_norm_legit_functional.default
    ]
    return [kept for norm in norms for kept in (norm, *norm.users)]


def _of_written(graph: torch.fx.Graph, written: Set[torch.fx.Node]) -> list[torch.fx.Node]:
    """What was computed of arguments that are written to, as eager mode saves it: to compute it
    again, the backward graph would read the arguments, whose values are gone then."""
    if not written:
        return []
    found, owners = [], owners_of(graph)
    for node in graph.nodes:
        if node.op == "output" or owners[node] in written:
            continue
        if not written.isdisjoint(owners[a] for a in node.all_input_nodes):
            found += [node, *(u for u in node.users if u.target is operator.getitem)]
    return found


def _copied_first(graph: torch.fx.Graph) -> set[torch.fx.Node]:
    """The copies that a joint graph begins with.

    AOTAutograd makes them of the arguments that are written to and have a gradient; it does not
    tell partitioners which these are.
    """
    calls = (n for n in graph.nodes if n.op != "placeholder")
    copies = itertools.takewhile(lambda n: n.target is aten.clone.default, calls)
    return {n for n in copies if len(n.args[0].users) == 1 and n.args[0].op == "placeholder"}


def _without_gradient(graph: torch.fx.Graph, forward: int, updated: int) -> set[torch.fx.Node]:
    """The arguments without a gradient that are written to, if they differ from others by type
    and sizes: AOTAutograd makes no copy of them."""
    results = results_of(graph)
    values = {_kind(r) for r in results[:updated] if isinstance(r, torch.fx.Node)}
    arguments = (n for n in graph.nodes if n.op == "placeholder")
    gradients = zip(arguments, results[forward:], strict=False)  # the last are the tangents
    return {n for n, gradient in gradients if gradient is None and _kind(n) in values}


def _kind(node: torch.fx.Node) -> str:
    value = node.meta.get("val")
    return f"{value.dtype} {value.shape}" if isinstance(value, torch.Tensor) else "no tensor"
