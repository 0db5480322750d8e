"""Calls of sizes that a graph leaves out, beside the call that it was made for.

A graph that Dynamo makes for any size is one for sizes of two or more, and torch may have found
bounds while it made it: a convolution chooses its way by batches of 16. A compiled model gets
another graph when such a size comes; what is saved has to have it before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import sympy
import torch

from dort_rewriter.aten import storage_order
from dort_rewriter.deployment.capturing import Captured
from dort_rewriter.deployment.examples import Call, map_call, mark_dims
from dort_rewriter.signature import inverse_order

LARGEST = 4_096
"""Sizes beyond a bound that are tried."""
_MOST_ELEMENTS = 2**26

Leaves = Sequence[tuple[torch.Tensor, str]]
"""The tensors of a call with their names, in order."""

Place = tuple[int, int]
"""A tensor of a call, and a dimension of it."""


def varying_places(captured: Captured, call: Call, leaves: Leaves) -> list[Place]:
    """Where the sizes of a call stand that may vary: the first place of each."""
    return list(_Sizes(captured, call, leaves).places.values())


def calls_beside(
    captured: Captured, call: Call, leaves: Leaves, places: Collection[Place]
) -> Iterator[tuple[str, Call]]:
    """Yield calls like the one that was captured, each with a size that its graph may leave out:
    one, two, and the next beyond a bound. Only sizes at some places are changed.

    Each comes with the size in words: ``x.shape[0] == 1``.
    """
    sizes = _Sizes(captured, call, leaves)
    for symbol, place in sizes.places.items():
        if place not in places:
            continue
        for size in sizes.left_out(symbol):
            if (made := sizes.of(symbol, size)) is not None:
                yield f"{leaves[place[0]][1]}.shape[{place[1]}] == {size}", made


class _Sizes:
    """The tensors of a call, and their sizes in the graph."""

    def __init__(self, captured: Captured, call: Call, leaves: Leaves) -> None:
        self._call = call
        self._tensors = [tensor for tensor, _ in leaves]
        placeholders = captured.block.graph_module.graph.find_nodes(op="placeholder")
        self._fakes: dict[int, torch.Tensor] = {
            id(value): node.meta["val"]
            for node, value in zip(placeholders, captured.args, strict=True)
            if isinstance(value, torch.Tensor)
        }
        self.places: dict[Any, Place] = {}
        """The first place of each symbol that is a size."""
        self._values: dict[Any, int] = {}
        self._ranges: dict[Any, Any] = {}
        for k, tensor in enumerate(self._tensors):
            for dim, size in self._symbolic(tensor):
                if isinstance(symbol := size.node.expr, sympy.Symbol):
                    self.places.setdefault(symbol, (k, dim))
                    self._values.setdefault(symbol, tensor.shape[dim])
                    self._ranges[symbol] = size.node.shape_env.var_to_range[symbol]

    def _symbolic(self, tensor: torch.Tensor) -> Iterator[tuple[int, torch.SymInt]]:
        """Yield the dimensions of a tensor whose sizes may vary, and these sizes."""
        fake = self._fakes.get(id(tensor))
        sizes: Sequence[Any] = () if fake is None else fake.shape
        for dim, size in enumerate(sizes):
            if isinstance(size, torch.SymInt) and not size.node.expr.is_number:
                yield dim, size

    def left_out(self, symbol: Any) -> list[int]:
        """Sizes that graphs leave out: small ones, and the nearest on either side of a range."""
        lower, upper = self._ranges[symbol].lower, self._ranges[symbol].upper
        sizes = {1, 2, max(1, int(lower) - 1)}
        if isinstance(upper, sympy.Integer | int) and upper < LARGEST:
            sizes.add(int(upper) + 1)
        return sorted(sizes)

    def of(self, changed: Any, size: int) -> Call | None:
        """The call with a size for a symbol; None where a tensor cannot be made so."""
        values = {**self._values, changed: size}
        made: dict[int, torch.Tensor] = {}
        for tensor in self._tensors:
            if id(tensor) in made:
                continue
            part, dims = tensor.detach(), []
            for dim, symbolic in self._symbolic(tensor):
                expression = symbolic.node.expr
                if changed in expression.free_symbols:
                    wanted = int(expression.subs(values))
                    if wanted < 1 or not part.numel():
                        return None
                    part = _resized(part, dim, wanted)
                    if part.numel() > _MOST_ELEMENTS:
                        return None
                dims.append(dim)
            part = _laid_out_as(part, tensor).requires_grad_(tensor.requires_grad)
            mark_dims(part, dims)
            made[id(tensor)] = part
        return map_call(*self._call, lambda t: made[id(t)])


def _resized(tensor: torch.Tensor, dim: int, size: int) -> torch.Tensor:
    """A tensor of so many rows, which are the first ones, or those there are again and again: so
    that indices among them stay indices."""
    if size <= tensor.shape[dim]:
        return tensor.narrow(dim, 0, size)
    rows = torch.arange(size, device=tensor.device) % tensor.shape[dim]
    return tensor.index_select(dim, rows)


def _laid_out_as(part: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """A tensor, dense in the same order of dimensions as another, if that is dense."""
    order = storage_order(whole)
    if order is None and whole.is_contiguous():
        order = tuple(range(whole.dim()))
    if part.shape == whole.shape or order is None:
        return part
    dense = part.permute(order).clone(memory_format=torch.contiguous_format)
    return dense.permute(inverse_order(order))
