"""Nested structures of tensors: printed, and compared with a message that says where they differ.

What counts as a structure: mappings, lists, tuples, dataclasses, what torch's pytree knows, and
objects that hold something and are equal to themselves alone, such as the caches of transformers.
Everything else is a leaf: tensors, arrays, numbers, text, functions, modules, None.
"""

from __future__ import annotations

import dataclasses
import enum
import types
from collections.abc import Iterator, Mapping, Sequence
from numbers import Real
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.utils import _pytree

from dort_rewriter.compiler.differences import Tolerance, difference, kind_of
from dort_rewriter.errors import OptionError
from dort_rewriter.runtime.ort_values import array_to_tensor

Absolute: TypeAlias = float | tuple[float, float] | Sequence[tuple[float, float]]
"""An absolute tolerance; or pairs of one and the share of the elements that must meet it."""

_SHOWN = 10
"""Differences listed, and elements printed, before the rest is only counted."""


def assert_all_close(
    expected: Any,
    got: Any,
    atol: Absolute = 1e-5,
    rtol: float = 1e-5,
    msg: str = "",
) -> None:
    """Compare two nested structures of tensors, arrays and numbers.

    Floating point and complex values must be within ``atol + rtol * |expected|``, NaN and
    infinities in the same places; everything else must be equal, element types and shapes too. A
    tensor may stand for an array, and a list for a tuple.

    Args:
        expected: the right results.
        got: the results to check.
        atol: a number, or a pair ``(atol, quantile)``: that share of the elements of each tensor
            must be within the tolerance, NaN and infinities all. Several pairs must all be met.
        rtol: the relative tolerance.
        msg: added to the message.

    Raises:
        AssertionError: they differ; the message lists the places and the largest differences.
        OptionError: the tolerances make no sense.

    """
    tolerances = _tolerances(atol, rtol)
    differences = list(_differences("results", expected, got, tolerances))
    if not differences:
        return
    lines = differences[:_SHOWN]
    if more := len(differences) - len(lines):
        lines.append(f"... and {more} more differences")
    raise AssertionError("\n".join([msg, *lines] if msg else lines))


def results_to_string(results: Any, indent: str = "") -> str:
    """A nested structure as text, a line for each tensor: type, shape, range or values.

    Args:
        results: tensors, arrays, numbers, and lists, tuples and mappings of them.
        indent: what each line begins with.
    """
    return "\n".join(indent + line for line in _describe("", results))


def _describe(label: str, value: Any) -> Iterator[str]:
    children = _children(value)
    if children is None:
        yield f"{label}{_describe_leaf(value)}"
        return
    yield f"{label}{type(value).__name__} of {len(children)}"
    for key, child in children:
        for line in _describe(f"{key}: ", child):
            yield f"  {line}"


def _children(value: Any) -> list[tuple[str, Any]] | None:
    """The parts of a structure with the way to write each; None for a leaf."""
    if isinstance(value, Mapping):
        return [(f"[{key!r}]", child) for key, child in value.items()]
    if isinstance(value, list | tuple):
        return [(f"[{i}]", child) for i, child in enumerate(value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(f".{f.name}", getattr(value, f.name)) for f in dataclasses.fields(value)]
    if type(value) in _pytree.SUPPORTED_NODES:
        return [(f"<{i}>", child) for i, child in enumerate(_pytree.tree_leaves(value))]
    if _is_record(value):
        return [(f".{name}", child) for name, child in vars(value).items()]
    return None


def _is_record(value: Any) -> bool:
    if isinstance(value, torch.Tensor | enum.Enum | types.ModuleType) or callable(value):
        return False
    kind: Any = type(value)
    return kind.__eq__ is object.__eq__ and bool(getattr(value, "__dict__", None))


def tensors_in(value: Any, around: frozenset[int] = frozenset()) -> list[torch.Tensor]:
    """The tensors of a structure, in order; ``around`` has the ids of what it is in."""
    if isinstance(value, torch.Tensor):
        return [value]
    if id(value) in around:  # objects may hold each other
        return []
    inside = around | {id(value)}
    parts = _children(value) or ()
    return [tensor for _, child in parts for tensor in tensors_in(child, inside)]


def _as_tensor(value: Any) -> torch.Tensor | None:
    """Tensors and numeric arrays as a tensor, else None."""
    if isinstance(value, torch.Tensor):
        return value.detach()
    if isinstance(value, np.ndarray | np.generic) and np.asarray(value).dtype.kind not in "OSUM":
        return array_to_tensor(value)
    return None


def _describe_leaf(value: Any) -> str:
    tensor = _as_tensor(value)
    if tensor is None:
        return repr(value)
    place = "" if tensor.device.type == "cpu" else f" on {tensor.device}"
    head = f"{kind_of(tensor)}{place}"
    if tensor.layout is not torch.strided:
        head += f" {str(tensor.layout).removeprefix('torch.')}"
        tensor = tensor.to_dense()
    if tensor.numel() <= _SHOWN:
        values = tensor.flatten().tolist()
        return f"{head} = {', '.join(_number(v) for v in values)}" if values else f"{head}, empty"
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if tensor.dtype is torch.bool:
        return f"{head} true={int(tensor.sum())}"
    wide = tensor.double()
    finite = wide[wide.isfinite()]
    parts = [head]
    if finite.numel():
        parts += [f"min={_number(finite.min().item())}", f"max={_number(finite.max().item())}"]
        parts += [f"mean={_number(finite.mean().item())}"]
    counts = {"nan": int(wide.isnan().sum()), "inf": int(wide.isinf().sum())}
    return " ".join([*parts, *(f"{name}={n}" for name, n in counts.items() if n)])


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _tolerances(atol: Absolute, rtol: float) -> list[Tolerance]:
    given: Any = (atol, 1.0) if _is_number(atol) else atol
    pairs = given if isinstance(given, Sequence) and not _is_pair(given) else [given]
    for pair in pairs:
        if not (_is_pair(pair) and pair[0] >= 0 and 0 < pair[1] <= 1):
            raise OptionError(
                "atol is a number, or pairs (tolerance, quantile) with a quantile above 0 and up "
                f"to 1, such as (1e-3, 0.99): not {atol!r}."
            )
    if not pairs or not (_is_number(rtol) and rtol >= 0):
        raise OptionError(f"atol and rtol give a tolerance, not {atol!r} and {rtol!r}.")
    relative = float(rtol)
    return [Tolerance(absolute=float(a), relative=relative, share=float(s)) for a, s in pairs]


def _is_number(value: Any) -> bool:
    return isinstance(value, Real)  # NOTE: numpy's too


def _is_pair(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) == 2 and all(map(_is_number, value))


def _differences(
    place: str, expected: Any, got: Any, tolerances: Sequence[Tolerance]
) -> Iterator[str]:
    parts, others = _children(expected), _children(got)
    if parts is None and others is None:
        if difference := _leaf_difference(expected, got, tolerances):
            yield f"{place}: {difference}"
        return
    by_name = isinstance(expected, Mapping)
    if parts is None or others is None or by_name != isinstance(got, Mapping):
        yield f"{place}: {_brief(expected)} expected, {_brief(got)} given"
        return
    if by_name and expected.keys() != got.keys():
        yield f"{place}: keys {list(expected)} expected, {list(got)} given"
        return
    if len(parts) != len(others):
        yield f"{place}: {len(parts)} results expected, {len(others)} given"
        return
    named = dict(others)
    for position, (key, part) in enumerate(parts):
        other = named[key] if by_name else others[position][1]
        yield from _differences(f"{place}{key}", part, other, tolerances)


def _brief(value: Any) -> str:
    tensor = _as_tensor(value)
    if tensor is not None:
        return kind_of(tensor)
    children = _children(value)
    return repr(value) if children is None else f"{type(value).__name__} of {len(children)}"


def _leaf_difference(expected: Any, got: Any, tolerances: Sequence[Tolerance]) -> str:
    """What is different between two leaves; an empty text if nothing is."""
    a, b = _as_tensor(expected), _as_tensor(got)
    numbers = isinstance(expected, float | complex) and type(got) is type(expected)
    if numbers:
        a, b = torch.as_tensor(np.asarray(expected)), torch.as_tensor(np.asarray(got))
    if a is None and b is None:
        return "" if _is_same(expected, got) else f"{expected!r} expected, {got!r} given"
    found = difference(got if b is None else b, expected if a is None else a, *tolerances)
    return found.text if found else ""


def _is_same(expected: Any, got: Any) -> bool:
    """Whether two values are the same that are no tensors."""
    if isinstance(expected, np.ndarray) and isinstance(got, np.ndarray):
        # NOTE: not the same dtype: that of text has the length of the longest.
        return expected.dtype.type is got.dtype.type and np.array_equal(expected, got)
    return type(expected) is type(got) and bool(np.all(expected == got))
