"""Names of dynamic dimensions: those given in ``dynamic_shapes``, instead of torch's symbols.

NOTE: names are a convention for readers; two dimensions that torch found equal have one name, two
that it did not have two, whatever they were called: equal names are a promise in ONNX.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

__all__ = ["flatten_shapes", "name_symbols", "without_names"]

logger = logging.getLogger(__name__)


def without_names(dynamic_shapes: Any) -> Any:
    """``dynamic_shapes`` as ``torch.export`` takes them: a text becomes a dynamic dimension."""
    if isinstance(dynamic_shapes, str):
        return torch.export.Dim.DYNAMIC
    if isinstance(dynamic_shapes, Mapping):
        return {key: without_names(value) for key, value in dynamic_shapes.items()}
    if isinstance(dynamic_shapes, list | tuple):
        return type(dynamic_shapes)(without_names(value) for value in dynamic_shapes)
    return dynamic_shapes


def flatten_shapes(
    forward: Any, args: Sequence[Any], kwargs: Mapping[str, Any], dynamic_shapes: Any
) -> list[Any]:
    """What ``dynamic_shapes`` say of each leaf of the arguments, in the order of the program."""
    parameters = inspect.signature(forward).parameters
    bound = inspect.signature(forward).bind_partial(*args, **kwargs).arguments
    if isinstance(dynamic_shapes, list | tuple):
        dynamic_shapes = dict(zip(bound, dynamic_shapes, strict=False))
    if not isinstance(dynamic_shapes, Mapping):
        dynamic_shapes = {}
    given: list[Any] = []
    by_name: dict[str, Any] = {}
    for name, value in bound.items():
        shapes = dynamic_shapes.get(name)
        if parameters[name].kind is inspect.Parameter.VAR_POSITIONAL:
            given += [*(shapes or ()), *[None] * len(value)][: len(value)]
        elif parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
            by_name |= shapes or {}
        else:
            by_name[name] = shapes
            given += [shapes] if len(given) < len(args) else []
    pairs = [*zip(args, given, strict=False), *((v, by_name.get(k)) for k, v in kwargs.items())]
    return [leaf for pair in pairs for leaf in _leaves(*pair)]


def _leaves(value: Any, shapes: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, shapes.get(key) if isinstance(shapes, Mapping) else None)
    elif isinstance(value, list | tuple):
        known = shapes if isinstance(shapes, list | tuple) else ()
        padded = [*known, *[None] * (len(value) - len(known))]
        for item, shape in zip(value, padded, strict=False):
            yield from _leaves(item, shape)
    elif isinstance(value, torch.Tensor):
        yield shapes
    else:  # a number, None, or a structure of a user
        yield from (None for _ in torch.utils._pytree.tree_leaves(value, is_leaf=_is_none))


def _is_none(value: Any) -> bool:
    return value is None


def name_symbols(values: Sequence[Any], shapes: Sequence[Any]) -> dict[str, str]:
    """The name of each symbol of some fake tensors, by what ``dynamic_shapes`` say of each."""
    names: dict[str, str] = {}
    for value, shape in zip(values, shapes, strict=True):
        if not isinstance(value, torch.Tensor):
            continue
        for size, dim in zip(value.shape, _dims(shape, value.dim()), strict=False):
            if (found := _symbol(size, dim)) is not None:
                _add(names, *found)
    return names


def _add(names: dict[str, str], symbol: str, name: str) -> None:
    if symbol in names:
        if names[symbol] != name:
            logger.info(
                "Dimensions %r and %r are equal: both are %r.", names[symbol], name, symbol
            )
        return
    free, i = name, 0
    while free in names.values():
        i += 1
        free = f"{name}_{i}"
    if i:
        logger.warning("Two dimensions %r may differ: the second is named %r.", name, free)
    names[symbol] = free


def _dims(shape: Any, rank: int) -> list[Any]:
    if isinstance(shape, Mapping):
        return [shape.get(i, shape.get(i - rank)) for i in range(rank)]
    return list(shape) if isinstance(shape, list | tuple) else []


def _symbol(size: Any, dim: Any) -> tuple[str, str] | None:
    """The symbol that a dimension names: itself, or what it is derived from (``2*batch``)."""
    if not isinstance(size, torch.SymInt) or dim is None:
        return None
    expression = size.node.expr
    symbols = [str(s) for s in expression.free_symbols]
    name = dim if isinstance(dim, str) else getattr(dim, "__name__", None)
    if len(symbols) != 1 or name is None:
        return None
    if str(expression) != symbols[0]:
        name = getattr(getattr(dim, "root", None), "__name__", None)
    return None if name is None else (symbols[0], name)
