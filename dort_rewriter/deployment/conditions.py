"""How the sizes that may vary relate to each other: found when a graph is saved."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import sympy
import torch

from dort_rewriter.deployment.interface import FLIPPED, Relation, from_size
from dort_rewriter.errors import CaptureError
from dort_rewriter.plan.outputs import ArgumentSizes
from dort_rewriter.signature import InputDim

_RELATIONS: Mapping[Any, str] = {
    sympy.Eq: "eq",
    sympy.Ne: "ne",
    sympy.Lt: "lt",
    sympy.Le: "le",
    sympy.Gt: "gt",
    sympy.Ge: "ge",
}

_LARGE = 2**31
"""Bounds from here on bind no tensor."""


def sizes_of(graph_module: torch.fx.GraphModule) -> ArgumentSizes:
    """How the sizes of a graph follow from those of the tensors that it takes."""
    return ArgumentSizes(
        {
            node: i
            for i, node in enumerate(_placeholders(graph_module))
            if isinstance(node.meta.get("val"), torch.Tensor)
        }
    )


def number_of(value: Any) -> int | None:
    """A size that is a number, also by what was found out about its symbol."""
    if isinstance(value, torch.SymInt):
        value = value.node.expr
        return int(value) if isinstance(value, sympy.Integer) else None
    return int(value)


def find_relations(
    graph_module: torch.fx.GraphModule, sizes: ArgumentSizes, args: Sequence[Any]
) -> list[Relation]:
    """What has to hold of the sizes of the arguments, besides those that are fixed.

    NOTE: to be asked when the model is made: exporting it asks about sizes, too.
    """
    found: dict[Relation, None] = {}
    environments: dict[int, Any] = {}
    for i, node in enumerate(_placeholders(graph_module)):
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            continue
        shape: Sequence[Any] = value.shape
        for dim, size in enumerate(shape):
            if not isinstance(size, torch.SymInt) or number_of(size) is not None:
                continue
            environments[id(size.node.shape_env)] = size.node.shape_env
            known = sizes.find(size)
            if known is None:
                raise CaptureError(f"Nothing tells the size {size} of an argument.")
            if known != InputDim(i, dim):
                found[Relation("eq", InputDim(i, dim), known)] = None
    for environment in environments.values():
        for relation in _knowledge(environment, sizes, args):
            found[relation] = None
    return list(found)


def _placeholders(graph_module: torch.fx.GraphModule) -> Iterator[torch.fx.Node]:
    return (n for n in graph_module.graph.nodes if n.op == "placeholder")


def _knowledge(environment: Any, sizes: ArgumentSizes, args: Sequence[Any]) -> Iterator[Relation]:
    """Yield the bounds of the symbols, and what was assumed of them while the graph was made."""

    def fixed(expression: Any) -> Iterator[Relation]:
        """What cannot be written down holds for the sizes of this call alone."""
        for symbol in sorted(expression.free_symbols, key=str):
            if (size := sizes.express(symbol)) is not None:
                yield Relation("eq", size, from_size(size, args))

    for symbol, bounds in environment.var_to_range.items():
        size = sizes.express(symbol)
        if size is None:
            continue
        if isinstance(bounds.lower, sympy.Integer) and bounds.lower > 0:
            yield Relation("ge", size, int(bounds.lower))
        if isinstance(bounds.upper, sympy.Integer) and bounds.upper < _LARGE:
            yield Relation("le", size, int(bounds.upper))
    for guard in environment.guards:
        yield from _related(environment.replace(guard.expr), sizes, fixed)


def _of_one_symbol(op: str, left: Any, right: Any) -> tuple[str, tuple[Any, Any]]:
    """A comparison with the symbol alone on the left, where it is of one: ``s - 1 != 1`` is
    ``s != 2``."""
    difference = sympy.expand(left - right)
    if len(difference.free_symbols) == 1 and difference.is_Add:
        (symbol,) = difference.free_symbols
        factor = difference.coeff(symbol, 1)
        rest = difference - factor * symbol
        if factor in (1, -1) and isinstance(rest, sympy.Integer):
            return (op if factor == 1 else FLIPPED.get(op, op)), (symbol, -rest * factor)
    return op, (left, right)


def _related(
    expression: Any, sizes: ArgumentSizes, fixed: Callable[[Any], Iterator[Relation]]
) -> Iterator[Relation]:
    if expression in (sympy.true, True):
        return
    if isinstance(expression, sympy.And):
        for part in expression.args:
            yield from _related(part, sizes, fixed)
        return
    op = _RELATIONS.get(type(expression))
    if op is not None:
        op, sides = _of_one_symbol(op, *expression.args)
        left, right = map(sizes.express, sides)
        if left is not None and right is not None:
            yield Relation(op, left, right)
            return
    yield from fixed(expression)
