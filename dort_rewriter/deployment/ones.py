"""Calls with sizes of one, for which torch has graphs of their own, beside one of varying sizes.

A graph that Dynamo makes for any size is one for sizes of two or more. A compiled model gets
another one when a size of one comes; what is saved has to have it before.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch

from dort_rewriter.aten.layouts import storage_order
from dort_rewriter.backends.seen_calls import map_values
from dort_rewriter.deployment.captured import Captured
from dort_rewriter.deployment.examples import Call, mark_dims
from dort_rewriter.signature import inverse_order

__all__ = ["OfOne", "calls_of_one"]

MOST_COMBINED = 2
"""Varying sizes of which each combination of ones gets a graph; of more, the first one does."""


@dataclass(frozen=True)
class OfOne:
    """A call with some sizes of one."""

    what: str
    """Which: ``x.shape[0] == 1``."""
    call: Call


def calls_of_one(
    captured: Captured, call: Call, leaves: Sequence[tuple[torch.Tensor, str]], *, alone: bool
) -> Iterator[OfOne]:
    """Yield calls like the one that was captured, with sizes of one where its graph takes larger
    ones alone.

    ``leaves`` are the tensors of the call with their names, in order. ``alone`` asks for the first
    such size only: of a batch.
    """
    tensors = _Tensors(captured, call, leaves)
    symbols = tensors.varying()
    if alone or len(symbols) > MOST_COMBINED:
        symbols = symbols[:1]
    for count in range(1, len(symbols) + 1):
        for ones in itertools.combinations(symbols, count):
            if (made := tensors.of_ones(ones)) is not None:
                what = " and ".join(f"{tensors.names[s]} == 1" for s in ones)
                yield OfOne(what, made)


class _Tensors:
    """The tensors of a call, and their sizes in the graph."""

    def __init__(
        self, captured: Captured, call: Call, leaves: Sequence[tuple[torch.Tensor, str]]
    ) -> None:
        self._call = call
        self._tensors = [tensor for tensor, _ in leaves]
        placeholders = captured.block.graph_module.graph.find_nodes(op="placeholder")
        self._fakes: dict[int, torch.Tensor] = {
            id(value): node.meta["val"]
            for node, value in zip(placeholders, captured.args, strict=True)
            if isinstance(value, torch.Tensor)
        }
        self._values: dict[Any, int] = {}
        """The size of this call that each symbol is."""
        self.names: dict[Any, str] = {}
        """The first size that each symbol is: ``x.shape[0]``."""
        self._environments: dict[Any, Any] = {}
        for tensor, name in leaves:
            for dim, size in self._symbolic(tensor):
                if isinstance(symbol := size.node.expr, sympy.Symbol):
                    self._values.setdefault(symbol, tensor.shape[dim])
                    self.names.setdefault(symbol, f"{name}.shape[{dim}]")
                    self._environments[symbol] = size.node.shape_env

    def _symbolic(self, tensor: torch.Tensor) -> Iterator[tuple[int, torch.SymInt]]:
        """Yield the dimensions of a tensor whose sizes may vary, and these sizes."""
        fake = self._fakes.get(id(tensor))
        sizes: Sequence[Any] = () if fake is None else fake.shape
        for dim, size in enumerate(sizes):
            if isinstance(size, torch.SymInt) and not size.node.expr.is_number:
                yield dim, size

    def varying(self) -> list[Any]:
        """The symbols of sizes that may vary, and may not be one."""
        return [
            symbol
            for symbol, environment in self._environments.items()
            if environment.var_to_range[symbol].lower > 1
        ]

    def of_ones(self, ones: Sequence[Any]) -> Call | None:
        """The call with sizes of one for some symbols; None where a tensor would have to grow."""
        values = {**self._values, **dict.fromkeys(ones, 1)}
        made: dict[int, torch.Tensor] = {}
        for tensor in self._tensors:
            if id(tensor) in made:
                continue
            smaller, dims = tensor.detach(), []
            for dim, size in self._symbolic(tensor):
                expression = size.node.expr
                if not expression.free_symbols.isdisjoint(ones):
                    wanted = int(expression.subs(values))
                    if not 0 < wanted <= tensor.shape[dim]:
                        return None
                    smaller = smaller.narrow(dim, 0, wanted)
                dims.append(dim)
            smaller = _laid_out_as(smaller, tensor).requires_grad_(tensor.requires_grad)
            mark_dims(smaller, dims)
            made[id(tensor)] = smaller
        args, kwargs = self._call
        return (
            tuple(map_values(a, lambda t: made[id(t)]) for a in args),
            {name: map_values(value, lambda t: made[id(t)]) for name, value in kwargs.items()},
        )


def _laid_out_as(part: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """A part of a tensor, dense in the same order of dimensions if the whole is dense."""
    order = storage_order(whole)
    if order is None and whole.is_contiguous():
        order = tuple(range(whole.dim()))
    if part.shape == whole.shape or order is None:
        return part
    dense = part.permute(order).clone(memory_format=torch.contiguous_format)
    return dense.permute(inverse_order(order))
