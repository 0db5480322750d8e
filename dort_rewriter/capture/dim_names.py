"""Names of dynamic dimensions: those given in ``dynamic_shapes``, instead of torch's symbols.

NOTE: names are a convention for readers; two dimensions that torch found equal have one name, two
that it did not have two, whatever they were called: equal names are a promise in ONNX.
"""

from __future__ import annotations

import inspect
import logging
import re
import traceback
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import torch

from dort_rewriter.capture.lines import is_users
from dort_rewriter.errors import CaptureError

logger = logging.getLogger(__name__)

_TRANSFORMS = str(Path(torch.__file__).parent / "_functorch")


def read_shapes(mod: Any, args: Sequence[Any], kwargs: Mapping[str, Any], given: Any) -> Any:
    """``dynamic_shapes`` with the dimensions of tensors counted from the first.

    A collection of torch becomes what it stands for; names that are none are refused.
    """
    collection: Any = getattr(torch.export, "ShapesCollection", ())
    if isinstance(given, collection):
        given = given.dynamic_shapes(mod, tuple(args), dict(kwargs))
    if isinstance(given, str):
        raise CaptureError(f"dynamic_shapes says of each argument what is dynamic, not {given!r}.")
    if not isinstance(given, Mapping | list | tuple):
        return given
    bound = inspect.signature(mod.forward).bind_partial(*args, **kwargs).arguments
    shapes = _from_first(bound if isinstance(given, Mapping) else [*bound.values()], given)
    _check_names(shapes)
    return shapes


def _from_first(value: Any, shapes: Any) -> Any:
    """What is said of a value, with dimensions counted from the first."""
    if isinstance(value, torch.Tensor) and isinstance(shapes, Mapping):
        return _axes(value, shapes)
    if isinstance(value, Mapping) and isinstance(shapes, Mapping):
        return {key: _from_first(value.get(key), shape) for key, shape in shapes.items()}
    if isinstance(value, list | tuple) and isinstance(shapes, list | tuple):
        padded = [*value, *[None] * (len(shapes) - len(value))]
        return type(shapes)(_from_first(v, s) for v, s in zip(padded, shapes, strict=False))
    return dict(shapes) if isinstance(shapes, Mapping) else shapes


def _axes(value: torch.Tensor, shape: Mapping[Any, Any]) -> dict[Any, Any]:
    rank = value.dim()
    found: dict[Any, Any] = {}
    for axis, dim in shape.items():
        if isinstance(axis, int) and not -rank <= axis < rank:
            raise CaptureError(
                f"dynamic_shapes has dimension {axis} of a tensor of {rank} dimension(s)."
            )
        place = axis % rank if isinstance(axis, int) else axis
        if place in found:
            raise CaptureError(f"dynamic_shapes has dimension {place} of a tensor twice.")
        found[place] = dim
    return found


def _check_names(shapes: Any) -> None:
    if isinstance(shapes, str) and not shapes.isidentifier():
        raise CaptureError(
            f"A dimension in dynamic_shapes is a name like 'batch', not {shapes!r}."
        )
    if isinstance(shapes, Mapping):
        if negative := [axis for axis in shapes if isinstance(axis, int) and axis < 0]:
            raise CaptureError(
                f"dynamic_shapes has dimension {negative[0]} where no tensor was found: "
                "dimensions inside structures of one's own are counted from the first."
            )
        shapes = list(shapes.values())
    if isinstance(shapes, list | tuple):
        for shape in shapes:
            _check_names(shape)


def check_dynamic(values: Sequence[Any], shapes: Sequence[Any]) -> None:
    """Refuse what is to be dynamic but has one size in a graph that is given."""
    if len(values) != len(shapes):
        raise CaptureError(
            f"dynamic_shapes speaks of {len(shapes)} value(s), the graph takes {len(values)}."
        )
    for i, (value, shape) in enumerate(zip(values, shapes, strict=True)):
        if not isinstance(value, torch.Tensor):
            continue
        for axis, (size, dim) in enumerate(
            zip(value.shape, _dims(shape, value.dim()), strict=False)
        ):
            if is_known(size) and _is_dynamic(dim):
                raise CaptureError(
                    f"The graph was made for {size} in dimension {axis} of input {i}: it cannot "
                    "be dynamic any more. Give dynamic_shapes where the graph is made."
                )


def require_all_said(dynamic_shapes: Any, shapes: Sequence[Any]) -> None:
    """Refuse ``dynamic_shapes`` of which some say nothing of a tensor, as ``shapes`` are read out
    of them: they are not built as the arguments are."""
    said, read = (
        [dim for dim in torch.utils._pytree.tree_leaves(given) if _is_dynamic(dim)]
        for given in (dynamic_shapes, shapes)
    )
    if len(said) != len(read):
        raise CaptureError("dynamic_shapes is not built as the arguments are.")


def is_known(size: Any) -> bool:
    """Whether a size is a number, also where tracing found that its symbol can be no other."""
    return isinstance(size, int) or bool(size.node.expr.is_number)


def _is_dynamic(dim: Any) -> bool:
    return _name(dim) is not None or dim == getattr(torch.export.Dim, "DYNAMIC", ...)


def _name(dim: Any) -> str | None:
    return dim if isinstance(dim, str) else getattr(dim, "__name__", None)


def without_names(dynamic_shapes: Any) -> Any:
    """``dynamic_shapes`` as ``torch.export`` takes them: a text becomes a dynamic dimension."""
    return torch.utils._pytree.tree_map_only(
        str, lambda _: torch.export.Dim.DYNAMIC, dynamic_shapes
    )


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
        yield from (
            None for _ in torch.utils._pytree.tree_leaves(value, is_leaf=lambda v: v is None)
        )


def name_symbols(
    graph: torch.fx.Graph, values: Sequence[Any], shapes: Sequence[Any]
) -> dict[str, str]:
    """The name of each symbol of some fake tensors, by what ``dynamic_shapes`` say of each.

    No name is a symbol that another dimension of the graph keeps.
    """
    found: list[tuple[str, str]] = []
    for value, shape in zip(values, shapes, strict=True):
        if not isinstance(value, torch.Tensor):
            continue
        for size, dim in zip(value.shape, _dims(shape, value.dim()), strict=False):
            if (pair := _symbol(size, dim)) is not None:
                found.append(pair)
    kept = _symbols(graph) - {symbol for symbol, _ in found}
    names: dict[str, str] = {}
    for symbol, name in found:
        _add(names, kept, symbol, name)
    _warn_of_conditions(values, names)
    return names


def _warn_of_conditions(values: Sequence[Any], names: Mapping[str, str]) -> None:
    """Log for which sizes a graph is right, where Python code has compared sizes with numbers.

    NOTE: what torch compares in an operator is left out: there eager mode raises for other sizes.
    What ``torch.func`` decides, as in how many chunks it maps, is Python code.
    """
    sizes: list[Any] = [n for v in values if isinstance(v, torch.Tensor) for n in v.shape]
    symbolic = [n for n in sizes if isinstance(n, torch.SymInt)]
    env: Any = symbolic[0].node.shape_env if symbolic else None
    said = set()
    for guard in env.guards if symbolic else ():
        place = guard.sloc.framework_loc
        condition = env.replace(guard.expr)
        if not isinstance(place, traceback.FrameSummary) or not condition.free_symbols:
            continue
        if is_users(place.filename) or place.filename.startswith(_TRANSFORMS):
            text = re.sub(r"\w+", lambda word: names.get(word[0], word[0]), str(condition))
            said.add((text, f"{place.filename}:{place.lineno}"))
    for text, where in sorted(said):
        logger.warning(
            "The graph holds for sizes with %s, which %s asks of the example; for others it may "
            "give wrong numbers.",
            *(text, where),
        )


def _symbols(graph: torch.fx.Graph) -> set[str]:
    values = torch.utils._pytree.tree_leaves([node.meta.get("val") for node in graph.nodes])
    sizes = [
        size
        for value in values
        for size in (value.shape if isinstance(value, torch.Tensor) else (value,))
    ]
    return {str(s) for n in sizes if isinstance(n, torch.SymInt) for s in n.node.expr.free_symbols}


def _add(names: dict[str, str], kept: Set[str], symbol: str, name: str) -> None:
    if symbol in names:
        if names[symbol] != name:
            logger.info(
                "Dimensions %r and %r are equal: both are %r.", names[symbol], name, symbol
            )
        return
    free, i = name, 0
    while free in names.values() or free in kept:
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
    name = _name(dim)
    if len(symbols) != 1 or name is None:
        return None
    if str(expression) != symbols[0]:
        name = getattr(getattr(dim, "root", None), "__name__", None)
    return None if name is None else (symbols[0], name)
