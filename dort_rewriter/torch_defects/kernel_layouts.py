"""How torch's kernels lay out results, where its fake tensors say otherwise.

``F.logsigmoid`` of what is transposed is row-major, and traced as transposed; ``floor_divide``,
``logaddexp`` and others lie as the operand that comes first, or as the one that is not broadcast.
No list knows them all: the kernel is asked, with tensors of a few elements that lie as its
operands do. The layout of a convolution of one axis is derived from that of two, which torch 2.8
traces rightly.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten

from dort_rewriter.aten import (
    ancestors,
    hint_of,
    is_contiguous,
    is_dense,
    is_random,
    lies_as_ordered,
    lineage,
    owners_of,
    reads_storage,
    results_of,
    storage_order,
)
from dort_rewriter.signature import inverse_order
from dort_rewriter.torch_defects.defect import Defect

DEFECT = Defect(
    operators="logsigmoid, floor_divide, logaddexp, copysign and others",
    effect="Results are traced with other strides than kernels give them; gradients of their "
    "determinants and solutions are those of the transpose.",
    seen_in=("2.8", "2.13"),
    remedy="the metadata of the graph is corrected: a kernel is asked on small tensors",
    upstream="pytorch#198364, pytorch#192668; the others: `reports/kernel_layouts.md`",
)


aten = torch.ops.aten


def _defaults(names: str) -> list[Any]:
    return [getattr(aten, name).default for name in names.split()]


_FILLING = (aten.index_fill.int_Scalar, aten.index_fill.int_Tensor)

_FOURIER = frozenset(_defaults("_fft_c2c _fft_c2r _fft_r2c"))
"""What is transformed comes first in memory, whatever the operand lies like."""

_CONVOLUTIONS: dict[Any, int] = {aten.convolution.default: 1, aten.convolution_backward.default: 2}
"""Convolutions and their gradients, and where their weights stand."""

_OF_FORMAT: dict[Any, int] = {
    **dict.fromkeys(
        _defaults(
            "_adaptive_avg_pool2d _upsample_bilinear2d_aa_backward "
            "_upsample_nearest_exact2d_backward adaptive_max_pool2d avg_pool2d "
            "max_pool2d_with_indices max_unpool2d pixel_shuffle pixel_unshuffle "
            "reflection_pad2d replication_pad2d upsample_bilinear2d_backward "
            "upsample_nearest2d_backward"
        ),
        0,
    ),
    **dict.fromkeys(
        _defaults(
            "_adaptive_avg_pool2d_backward adaptive_max_pool2d_backward avg_pool2d_backward "
            "max_pool2d_with_indices_backward reflection_pad2d_backward "
            "reflection_pad3d_backward replication_pad2d_backward replication_pad3d_backward"
        ),
        1,
    ),
}
"""What has the format of an operand, row-major or channels-last, and the place of that.

NOTE: the kernels of few elements that are asked may be smaller than a window or a margin.
"""

_UNTAGGED = frozenset(
    {
        *_OF_FORMAT,
        *_FILLING,
        *_FOURIER,
        *_defaults(
            "batch_norm_backward glu_backward native_batch_norm_backward _batch_norm_no_update "
            "_batch_norm_with_update_functional floor_divide log_sigmoid_forward "
            "_native_batch_norm_legit _native_batch_norm_legit_functional "
            "_native_batch_norm_legit_no_training _standard_gamma cat complex constant_pad_nd "
            "empty_like flip full_like normal_functional ones_like poisson polar rand_like "
            "randint_like randn_like reflection_pad3d replication_pad3d roll uniform zero "
            "zeros_like"
        ),
        *(aten.fill.Scalar, aten.fill.Tensor, aten._native_batch_norm_legit.no_stats),
        *(aten.normal.Tensor_Tensor, aten.normal.float_Tensor, aten.randint_like.low_dtype),
    }
)
"""Not tagged as elementwise, but their first results lie as their operands do, or do not."""


_SETTLED = frozenset(_defaults("_linalg_det _linalg_slogdet _linalg_solve_ex"))
"""Their gradients read factors of the matrix or of its transpose: of which, the layout of the
matrix says while it is traced."""


def asks_for_format(graph_module: torch.fx.GraphModule) -> bool:
    """Whether results of a graph of Dynamo are made dense where they are not.

    NOTE: what AOTAutograd traces has no node of that where there seems to be nothing to do.
    """
    nodes = (
        n
        for module in graph_module.modules()
        if isinstance(module, torch.fx.GraphModule)
        for n in ancestors(results_of(module.graph))
    )
    return any("contiguous" in str(n.target) or "memory_format" in n.kwargs for n in nodes)


def correct_layouts(graph: torch.fx.Graph, *, hidden_copies: bool, owns_views: bool) -> int:
    """Note how the elementwise results of a graph lie in eager mode, if anybody sees it.

    What is a view of them, or recorded to lie as they do, follows; with ``hidden_copies`` unless
    eager mode may have made a copy of it. With ``owns_views``, where the views that a graph
    returns are those that it made, what eager mode copies (``flatten``) is copied. Returns how
    many nodes have another layout now.
    """
    views: dict[torch.fx.Node, list[torch.fx.Node]] = {}
    for node, owner in owners_of(graph).items():
        if owner is not node:
            views.setdefault(owner, []).append(node)
    owners = _seen(graph).difference(*views.values())
    changed: set[torch.fx.Node] = set()
    traced = {n: n.args[0].meta.get("val") for n in graph.nodes if n.target in _SETTLED}
    for node in graph.nodes:
        value = node.meta.get("val")
        if node in traced and node.args[0] in changed:
            _read_as_traced(node, traced[node])
        if node not in owners or not _is_on_cpu(value):
            continue
        if isinstance(value, torch.Tensor) and _is_elementwise(node):
            new = _asked(node, value)
        elif _convolves_rows(node) or not changed.isdisjoint(node.all_input_nodes):
            new = _traced(node, value)
        else:
            new = None
        if new is not None:
            family = (node, *views.get(node, ()))
            changed |= _replace(family, new, hidden_copies=hidden_copies, owns_views=owns_views)
    return len(changed)


def _is_on_cpu(value: Any) -> bool:
    tensors = [v for v in tree_leaves(value) if isinstance(v, torch.Tensor)]
    return bool(tensors) and all(v.device.type == "cpu" for v in tensors)


def _seen(graph: torch.fx.Graph) -> set[torch.fx.Node]:
    """The nodes of a graph whose layouts show: in a result, in places, in the order of a draw.

    What an operator gives may lie as what it reads (``flip``, ``sort``, ``index_put``), and
    ``torch.autograd.grad`` shows gradients.
    """
    seen = {n for n in results_of(graph) if isinstance(n, torch.fx.Node)}
    seen.update(n.args[0] for n in graph.nodes if n.target is aten.as_strided.default)
    seen.update(read for n in graph.nodes if is_random(n) for read in n.all_input_nodes)
    return ancestors(seen)


def _convolves_rows(node: torch.fx.Node) -> bool:
    """Whether a node is a convolution of one axis, or the gradients of one."""
    if node.target not in _CONVOLUTIONS:
        return False
    weight: Any = node.args[_CONVOLUTIONS[node.target]]
    return bool(weight.meta["val"].dim() == 3)


def _replace(
    family: Sequence[torch.fx.Node], new: Any, *, hidden_copies: bool, owns_views: bool
) -> set[torch.fx.Node]:
    """Note how a node lies, and what the views behind it show; return all that is changed.

    NOTE: eager mode copies some of what was traced as a view. ``contiguous()`` leaves no node
    behind where it seems to have nothing to do: nothing is changed where a view would no longer
    be dense in a format. What cannot be a view of what lies otherwise (``flatten``) becomes a
    copy, unless AOTAutograd will make the views that the graph returns.
    """
    readers = {user for n in family for user in n.users if reads_storage(user)}
    if any(user.target is not aten.as_strided.default for user in readers):
        return set()
    owner, *views = family
    values: dict[torch.fx.Node, Any] = {owner: new}
    copied: dict[torch.fx.Node, torch.Tensor] = {}
    for view in views:
        read: Any = torch.fx.map_arg(
            (view.args, view.kwargs), lambda n: values.get(n, n.meta.get("val"))
        )
        args, kwargs = read
        shown = _computed(view.target, args, kwargs)
        if shown is None and owns_views and view.target is aten.view.default:
            copied[view] = args[0].new_empty(args[0].shape)
            shown = _computed(view.target, (copied[view], *args[1:]), kwargs)
        lost = _formats(view.meta.get("val")) - _formats(shown)
        if shown is None or (hidden_copies and lost):
            return set()
        values[view] = shown
    for each, value in values.items():
        each.meta["val"] = value
    for view, value in copied.items():
        _read_copy(view, value)
    return set(values)


def _read_as_traced(node: torch.fx.Node, value: torch.Tensor) -> None:
    """Have an operator read a copy of its first operand, in the layout that was traced."""
    order = tuple(range(value.dim())) if is_contiguous(value) else storage_order(value)
    operand = node.args[0]
    if order is None or not isinstance(operand, torch.fx.Node):
        return
    steps: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
        (aten.permute.default, (order,), {}),
        (aten.clone.default, (), {"memory_format": torch.contiguous_format}),
        (aten.permute.default, (inverse_order(order),), {}),
    ]
    with node.graph.inserting_before(node):
        for target, args, kwargs in steps:
            made = node.graph.call_function(target, (operand, *args), kwargs)
            made.meta = {
                **operand.meta,
                "val": _computed(target, (operand.meta["val"], *args), kwargs),
            }
            operand = made
    node.update_arg(0, operand)


def _read_copy(view: torch.fx.Node, value: torch.Tensor) -> None:
    """Have a view show a row-major copy of what it is a view of."""
    with view.graph.inserting_before(view):
        copy = view.graph.call_function(
            aten.clone.default, view.args[:1], {"memory_format": torch.contiguous_format}
        )
    copy.meta = {**view.meta, "val": value}
    view.update_arg(0, copy)


def _asked(node: torch.fx.Node, value: torch.Tensor) -> torch.Tensor | None:
    """A result as the kernel lays it out; None if it is recorded like that, or cannot be told."""
    call = node.args[0] if node.target is operator.getitem else node
    assert isinstance(call, torch.fx.Node)
    values = [value, *(n.meta.get("val") for n in call.all_input_nodes)]
    is_plain = all(not isinstance(v, torch.Tensor) or lies_as_ordered(v, None) for v in values)
    if is_plain and call.target not in _FOURIER:
        return None
    order = _ask(call)
    if order is None or len(order) != value.dim() or lies_as_ordered(value, order):
        return None
    return _stored(value, order)


def _traced(node: torch.fx.Node, value: Any) -> Any:
    """A result as it would be recorded for operands as they lie now; None if it is."""
    target: Any = node.target
    if isinstance(target, torch._ops.OpOverload):
        if target._schema.is_mutable:
            return None
    elif target is not operator.getitem:
        return None
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda n: n.meta.get("val"))
    compute = _convolved if _convolves_rows(node) else _computed
    computed = tree_leaves(compute(target, args, kwargs))
    leaves, structure = tree_flatten(value)
    if len(computed) != len(leaves):
        return None
    laid = [_lying(v, c) for v, c in zip(leaves, computed, strict=True)]
    if all(a is b for a, b in zip(leaves, laid, strict=True)):
        return None
    return tree_unflatten(laid, structure)


def _computed(target: Any, args: Any, kwargs: Any) -> Any:
    """What an operator gives for fake tensors; None if it does not take them.

    NOTE: torch 2.8 logs what its own fake kernels raise.
    """
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with torch.no_grad():
            return target(*args, **kwargs)
    except Exception:  # whatever a fake kernel of a program raises
        return None
    finally:
        logger.setLevel(level)


def _convolved(target: Any, args: Any, kwargs: Any) -> Any:
    """What a convolution of one axis gives, as that of images of one row.

    NOTE: the kernel takes rows for such images; torch 2.8's fake one says row-major.
    """
    place = _CONVOLUTIONS[target]
    tensors = [
        t.unsqueeze(2) for t in (*args[: place - 1], args[place - 1].contiguous(), args[place])
    ]
    stride, padding, dilation, transposed, output_padding, *rest = args[place + 2 :]
    results = _computed(
        target,
        (
            *tensors,
            args[place + 1],
            [1, *stride],
            [0, *padding],
            [1, *dilation],
            transposed,
            [0, *output_padding],
            *rest,
        ),
        kwargs,
    )
    return tree_map_only(torch.Tensor, lambda t: t.squeeze(2) if t.dim() == 4 else t, results)


_FORMATS = {4: (0, 2, 3, 1), 5: (0, 2, 3, 4, 1)}
"""The axes of tensors that are channels-last, in the order of memory."""


def _is_channels_last(value: torch.Tensor) -> bool:
    """Whether kernels take a tensor for channels-last: ``suggest_memory_format`` of C++.

    NOTE: strides of dimensions of size one count.
    """
    slowest_first = _FORMATS.get(value.dim())
    if slowest_first is None:
        return False
    step = 0
    for axis in reversed(slowest_first):
        size, stride = hint_of(value.shape[axis]), hint_of(value.stride(axis))
        if size == 0 or stride < max(step, 1):
            return False
        if axis == 0 and step == hint_of(value.stride(1)):
            return False
        step = stride * max(size, 1)
    return True


def _formats(value: Any) -> set[str]:
    """The memory formats in which a tensor is dense."""
    if not isinstance(value, torch.Tensor):
        return set()
    found = {"row-major"} if is_contiguous(value) else set()
    order = _FORMATS.get(value.dim())
    return found | {"channels-last"} if order and is_contiguous(value.permute(order)) else found


def _lying(value: Any, other: Any) -> Any:
    """A tensor that lies as another of its sizes does; itself if it does, or that has gaps."""
    if not isinstance(value, torch.Tensor) or not isinstance(other, torch.Tensor):
        return value
    if value.dim() != other.dim() or not is_dense(other):
        return value
    if (order := _exact_order(other)) is not None:
        return value if lies_as_ordered(value, order) else _stored(value, order)
    order = storage_order(other) or tuple(range(value.dim()))
    return value if is_contiguous(value.permute(order)) else _stored(value, order)


def _exact_order(value: torch.Tensor) -> tuple[int, ...] | None:
    """The dimensions from the slowest to the fastest in memory, if all strides follow from it.

    NOTE: dimensions of size one have their places too: what lies in several formats is taken for
    one of them by its strides there.
    """
    strides, shape = [[hint_of(n) for n in given] for given in (value.stride(), value.shape)]
    order = tuple(sorted(range(value.dim()), key=lambda i: (-strides[i], -shape[i], i)))
    return order if lies_as_ordered(value, order) else None


def _stored(value: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
    """A tensor like another, whose dimensions lie in an order, from the slowest to the fastest."""
    shape = [value.shape[i] for i in order]
    return value.new_empty(shape).permute(inverse_order(order))


def _is_elementwise(node: torch.fx.Node) -> bool:
    """Whether an operator gives one new tensor, made element by element."""
    if node.target is operator.getitem:
        source = node.args[0]
        assert isinstance(source, torch.fx.Node)
        return bool(node.args[1] == 0) and source.target in _UNTAGGED
    if not isinstance(node.target, torch._ops.OpOverload) or node.target._schema.is_mutable:
        return False
    if node.target.namespace != "aten":  # those of others may do more than compute
        return False
    is_tagged = torch.Tag.pointwise in node.target.tags or node.target in _UNTAGGED
    return is_tagged and len(lineage(node)) == 1


def _ask(call: torch.fx.Node) -> tuple[int, ...] | None:
    """The order of memory in which a kernel writes its first result; None if it does not tell."""
    if call.target in _OF_FORMAT:
        operand: Any = call.args[_OF_FORMAT[call.target]]
        like: torch.Tensor = operand.meta["val"]
        return _FORMATS[like.dim()] if _is_channels_last(like) else tuple(range(like.dim()))
    if call.target is aten.glu_backward.default:  # of small sizes one may be no half of another
        return tuple(range(call.meta["val"].dim()))
    # The first place is one wherever there is any.
    filled = 0 if call.target in _FILLING else 1
    small = _Small([n.meta["val"] for n in call.all_input_nodes], filled)
    read: Any = torch.fx.map_arg((call.args, call.kwargs), lambda n: small.like(n.meta["val"]))
    args, kwargs = read
    if call.target is aten.constant_pad_nd.default:  # so little may be less than what is cut off
        args = (args[0], [max(n, 0) for n in args[1]], *args[2:])
    elif call.target is aten.roll.default:
        (rolled,) = call.all_input_nodes[:1]
        args = (args[0], *_rolled(rolled.meta["val"], args[0], *args[1:]))
    elif call.target is aten._fft_c2r.default:
        args = (*args[:3], 2 * args[0].shape[args[1][-1]] - 1)
    kept = torch.random.fork_rng(devices=[])  # what is asked may draw
    with _disable_current_modes(), torch.no_grad(), kept:
        try:
            result = call.target(*args, **kwargs)  # type: ignore[operator]
        except (IndexError, RuntimeError, TypeError, ValueError):
            return None  # it does not take numbers like these
        return _exact_order(result[0] if isinstance(result, tuple) else result)


def _rolled(
    value: torch.Tensor, small: torch.Tensor, shifts: Sequence[int], axes: Sequence[int] = ()
) -> tuple[Sequence[int], Sequence[int]]:
    """How to roll a small tensor so that as little, or more, comes to the other end."""
    if not axes:
        return shifts, axes
    found = []
    for shift, axis in zip(shifts, axes, strict=True):
        size, less = hint_of(value.shape[axis]), small.shape[axis]
        moved = shift % size if size else 0
        found.append(moved if moved < 2 else max(less - (size - moved), 2 % less))
    return found, axes


class _Small:
    """Makes small tensors of one number that lie as the operands of a kernel."""

    def __init__(self, operands: Sequence[Any], filled: int) -> None:
        self.filled = filled
        tensors = [v for v in operands if isinstance(v, torch.Tensor)]
        self.sizes = {0: 0, 1: 1}
        for size in sorted({hint_of(s) for v in tensors for s in v.shape} - {0, 1}):
            self.sizes[size] = min(size, max(*self.sizes.values(), 3) + 1)

    def like(self, value: Any) -> Any:
        """A tensor in the order of memory of another; a number for a size."""
        if not isinstance(value, torch.Tensor):
            return 1 if isinstance(value, torch.SymInt | torch.SymFloat) else value
        shape = [hint_of(s) for s in value.shape]
        small = [self.sizes[n] for n in shape]
        strides = self._strides(shape, [hint_of(s) for s in value.stride()], small)
        extent = 1 + sum((n - 1) * s for n, s in zip(small, strides, strict=True))
        with _disable_current_modes():
            memory = torch.full((max(extent, 0),), self.filled, dtype=value.dtype)
            return memory.as_strided(small, strides)

    def _strides(
        self, shape: Sequence[int], strides: Sequence[int], small: Sequence[int]
    ) -> list[int]:
        """Strides in the order of others, with a gap where these have one."""
        found = [0] * len(shape)
        full = step = 1
        last = (0, 0)
        for axis in sorted(range(len(shape)), key=lambda i: (strides[i], shape[i])):
            if strides[axis] == 0:
                continue
            if shape[axis] == 1 and strides[axis] < full:  # a place inside of other dimensions
                found[axis] = last[1]
                continue
            if strides[axis] == last[0]:  # elements overlap
                step = last[1]
            elif shape[axis] > 1 and strides[axis] != full:
                step = 1 + (step if strides[axis] > full else last[1])
            found[axis] = step
            last = (strides[axis], step)
            full, step = strides[axis] * shape[axis], step * small[axis]
        return found


def present() -> bool:
    """Whether a result is traced with the strides of its argument, which the kernel drops."""
    with FakeTensorMode():
        traced = torch.nn.functional.logsigmoid(torch.empty(3, 4).t())
    return traced.stride() != (3, 1)
