"""Views as steps that the executor takes in torch, after the session ran."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch

from dort_rewriter.aten.layouts import lies_as_ordered, overlaps, storage_order
from dort_rewriter.plan.sizes import ArgumentSizes
from dort_rewriter.signature import ViewStep, inverse_order
from dort_rewriter.traced_sizes import is_contiguous

__all__ = ["Unknown", "is_static", "lay_out", "replay", "strided"]


class Unknown(Exception):
    """The arguments of a graph do not tell how a view of it is taken."""

    def __init__(self, node: torch.fx.Node) -> None:
        self.node = node
        super().__init__(node.name)


def replay(chain: Sequence[torch.fx.Node], sizes: ArgumentSizes) -> tuple[ViewStep, ...]:
    """How to make the first node of a lineage out of the last: by the same operators."""
    return tuple(_step(node, sizes) for node in reversed(chain[:-1]))


def _step(node: torch.fx.Node, sizes: ArgumentSizes) -> ViewStep:
    if node.target is operator.getitem:
        return ViewStep("getitem", (node.args[1],))
    if node.target is torch.ops.prims.view_of.default:
        return ViewStep("aten::alias")
    assert isinstance(node.target, torch._ops.OpOverload)
    args = tuple(_argument(node, a, sizes) for a in node.args[1:])
    kwargs = tuple((k, _argument(node, a, sizes)) for k, a in node.kwargs.items())
    return ViewStep(node.target.name(), args, kwargs)


def _argument(node: torch.fx.Node, argument: Any, sizes: ArgumentSizes) -> Any:
    if isinstance(argument, list | tuple):
        return tuple(_argument(node, a, sizes) for a in argument)
    if isinstance(argument, torch.fx.Node):
        size = sizes.find(argument)
        if size is None:
            raise Unknown(node)
        return size
    return argument


def strided(base: torch.Tensor, view: torch.Tensor, sizes: ArgumentSizes) -> ViewStep | None:
    """How a view is seen in the memory of a base, by sizes and strides.

    None where these do not tell it, or the arguments do not tell these.
    """
    same_bits = base.is_conj() == view.is_conj() and base.is_neg() == view.is_neg()
    if base.dtype is not view.dtype or not same_bits:
        return None
    shape, strides = sizes.find_all(view.shape), sizes.find_all(view.stride())
    offset = sizes.find(view.storage_offset() - base.storage_offset())
    if shape is None or strides is None or offset is None:
        return None
    return ViewStep("aten::as_strided", (shape, strides, offset))


def is_static(step: ViewStep) -> bool:
    """Whether all sizes of a strided view are numbers."""
    shape, strides, offset = step.args
    assert isinstance(shape, tuple)
    assert isinstance(strides, tuple)
    return all(isinstance(n, int) for n in (*shape, *strides, offset))


def lay_out(
    node: torch.fx.Node, sizes: ArgumentSizes, *, as_view: bool = False
) -> tuple[ViewStep, ...]:
    """How what the model computed for a node becomes what torch would have computed.

    The model gives it in the order it is stored in. Its memory is new, so that the layout can be
    changed in place: the caller gets no view of a hidden tensor, unless ``as_view`` allows it.
    """
    value = node.meta["val"]
    order = storage_order(value)
    dense = order is not None or is_contiguous(value)
    if dense and order is None and (as_view or lies_as_ordered(value, None)):
        return ()  # nobody sees the strides of dimensions of size one of what may be a view
    step = strided(value, value, sizes)
    if dense and (step is None or (as_view and not is_static(step))):
        permute = "aten::permute" if as_view else "permute_"
        # At most the strides of dimensions of size one differ.
        return () if order is None else (ViewStep(permute, (inverse_order(order),)),)
    if dense and step is not None:
        return (ViewStep("aten::as_strided_", step.args),)
    strides = sizes.find_all(value.stride())
    if strides is None or overlaps(value):
        raise Unknown(node)
    return (ViewStep("lay_out", (strides,)),)
