"""What torch records wrongly of its operators: types and sizes, corrected here.

Of normalizations every torch does, of the rest 2.8.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses import FakeTensorMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from dort_rewriter.aten import is_same_size
from dort_rewriter.torch_defects.count_types import COUNTING, with_count_types
from dort_rewriter.torch_defects.defect import Defect

DEFECT = Defect(
    operators="layer_norm, group_norm, batch_norm of 16-bit numbers with weights of 32 bits",
    effect=(
        "Statistics, and gradients of weights, are traced with 16 bits; kernels on the CPU "
        "give 32."
    ),
    seen_in=("2.8", "2.13"),
    remedy="the metadata of the graph is corrected",
    upstream=(
        "`reports/metadata.md`, `reports/metadata_of_expand.md`; gradients of layer norm: "
        "pytorch#159830 (fix)"
    ),
)


aten = torch.ops.aten

_QUOTIENTS = frozenset({aten.div.Tensor, aten.div.Scalar})
"""Those of integers are recorded as integers where sizes are symbolic."""

_HALVES = frozenset({torch.bfloat16, torch.float16})

_NORMS = frozenset(
    {
        aten.native_layer_norm.default,
        aten.native_group_norm.default,
        aten.native_batch_norm.default,
        aten._native_batch_norm_legit.default,
        aten._native_batch_norm_legit.no_stats,
        aten._native_batch_norm_legit_functional.default,
        aten._native_batch_norm_legit_no_training.default,
    }
)
_GRADIENTS = frozenset(
    {
        aten.native_layer_norm_backward.default,
        aten.native_group_norm_backward.default,
        aten.native_batch_norm_backward.default,
    }
)


def correct_metadata(graph: torch.fx.Graph) -> int:
    """Note the type and the sizes that kernels give, and what becomes of them further on.

    Returns for how many nodes.
    """
    corrected: set[torch.fx.Node] = set()
    for node in graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and node.target in _QUOTIENTS and _is_whole(value):
            node.meta["val"] = _like(value, torch.get_default_dtype())
        elif node.target is aten.linalg_vector_norm.default:
            _correct_norm(node)
        elif node.target is aten.expand.default:
            _correct_expand(node)
        elif node.target in _NORMS or node.target in _GRADIENTS:
            _correct_normalization(node)
        elif node.target in COUNTING and value is not None:
            args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda n: n.meta.get("val"))
            node.meta["val"] = with_count_types(node.target, value, *args, **kwargs)
        elif _is_operator(node) and not corrected.isdisjoint(node.all_input_nodes):
            _follow(node)
        if node.meta.get("val") is not value:
            corrected.add(node)
    return len(corrected)


def _is_whole(value: torch.Tensor) -> bool:
    return not (value.is_floating_point() or value.is_complex())


def _correct_norm(node: torch.fx.Node) -> None:
    """A norm over dimensions of one element keeps in the record those that are counted from the
    last, and of one number in all it has the type it is computed in."""
    x, dims = node.args[0], node.args[2] if len(node.args) > 2 else None
    assert isinstance(x, torch.fx.Node)
    recorded, read = node.meta.get("val"), x.meta.get("val")
    if not isinstance(recorded, torch.Tensor) or not isinstance(read, torch.Tensor):
        return
    if isinstance(dims, list | tuple) and any(d < 0 for d in dims):
        args = (read, node.args[1], [d % read.dim() for d in dims], *node.args[3:])
        computed = node.target(*args, **node.kwargs)  # type: ignore[operator]  # it is a function
        if computed.dim() != recorded.dim():
            node.meta["val"] = recorded = computed
    dtype = node.kwargs.get("dtype") or read.dtype
    if isinstance(dtype, torch.dtype) and recorded.dtype is not dtype and not dtype.is_complex:
        node.meta["val"] = _like(recorded, dtype)


def _correct_expand(node: torch.fx.Node) -> None:
    """A new dimension of one element has another stride in the record than the kernel gives it,
    by which elementwise kernels lay out what they make of it."""
    x, recorded = node.args[0], node.meta.get("val")
    read = x.meta.get("val") if isinstance(x, torch.fx.Node) else None
    if not isinstance(recorded, torch.Tensor) or not isinstance(read, torch.Tensor):
        return
    shape, strides = recorded.shape, list(recorded.stride())
    for i in reversed(range(recorded.dim() - read.dim())):
        size, stride = (shape[i + 1], strides[i + 1]) if i + 1 < len(shape) else (1, 1)
        if (
            is_same_size(shape[i], 1)
            and isinstance(stride, int)
            and (stride == 0 or isinstance(size, int))
        ):
            strides[i] = size * stride if stride else 0
    changed = zip(recorded.stride(), strides, strict=True)
    if any(isinstance(b, int) and not is_same_size(a, b) for a, b in changed):
        node.meta["val"] = read.as_strided(shape, strides, recorded.storage_offset())


def _correct_normalization(node: torch.fx.Node) -> None:
    """With numbers of 16 bits beside weights of 32 (autocast on the CPU), statistics and gradients
    of weights have 32, and the gradient of the numbers has 16: recorded are 16, or 32 for all."""
    values = [n.meta.get("val") for n in node.all_input_nodes]
    types = {v.dtype for v in values if isinstance(v, torch.Tensor) and v.is_floating_point()}
    x, recorded = node.args[node.target in _GRADIENTS], node.meta.get("val")
    assert isinstance(x, torch.fx.Node)
    read = x.meta.get("val")
    if torch.float32 not in types or not isinstance(read, torch.Tensor):
        return
    if read.dtype not in _HALVES or read.device.type != "cpu":
        return
    if not isinstance(recorded, list | tuple):
        return
    wanted = [read.dtype, *(torch.float32 for _ in recorded[1:])]
    if any(v is not None and v.dtype is not d for v, d in zip(recorded, wanted, strict=True)):
        pairs = zip(recorded, wanted, strict=True)
        node.meta["val"] = tuple(None if v is None else _like(v, d) for v, d in pairs)


def _is_operator(node: torch.fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) or node.target is operator.getitem


def _follow(node: torch.fx.Node) -> None:
    """Note what an operator gives for the values of its arguments as they are now.

    It may not take them: it was traced for others. What it gives shows when it runs.
    """
    if not all("val" in n.meta for n in node.all_input_nodes):
        return
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
    try:
        computed = node.target(*args, **kwargs)  # type: ignore[operator]  # it is a function
    except (RuntimeError, TypeError, ValueError, IndexError):
        return
    leaves, structure = tree_flatten(node.meta["val"])
    given = [v for v in tree_leaves((args, kwargs)) if isinstance(v, torch.Tensor)]
    made = tree_leaves(computed)
    if len(made) != len(leaves):  # parts of what has another length
        node.meta["val"] = computed
        return
    pairs = zip(leaves, made, strict=True)
    changed = [_corrected(recorded, new, given) for recorded, new in pairs]
    if any(a is not b for a, b in zip(leaves, changed, strict=True)):
        node.meta["val"] = tree_unflatten(changed, structure)


def _corrected(recorded: Any, computed: Any, given: Sequence[torch.Tensor]) -> Any:
    """A recorded value, as it is unless it is another one: its sizes have their names.

    A view stays one: of the memory that what it shows has now.
    """
    if not isinstance(recorded, torch.Tensor) or not isinstance(computed, torch.Tensor):
        return recorded
    if recorded.dim() != computed.dim():
        return computed
    base = next((v for v in given if _share(v, computed)), None)
    if base is None:
        return recorded if recorded.dtype is computed.dtype else _like(recorded, computed.dtype)
    if _share(base, recorded):
        return recorded
    if base.dtype is not computed.dtype:
        return computed
    return base.as_strided(recorded.shape, recorded.stride(), recorded.storage_offset())


def _share(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.untyped_storage()._cdata == b.untyped_storage()._cdata


def _like(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    # NOTE: what is a view of a part lies where it lay; ``to`` would let it begin at zero.
    whole = value.new_empty((value.untyped_storage().nbytes() // value.itemsize,), dtype=dtype)
    return whole.as_strided(value.shape, value.stride(), value.storage_offset())


def present() -> bool:
    """Whether statistics are traced with 16 bits where the kernel gives 32."""
    with FakeTensorMode():
        x, weight = torch.empty(2, 3, dtype=torch.bfloat16), torch.empty(3)
        mean = aten.native_layer_norm.default(x, [3], weight, weight, 1e-5)[1]
    return mean.dtype is torch.bfloat16
