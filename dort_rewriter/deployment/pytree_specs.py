"""Arguments and results as plain data: what is nested in what, with numbers in place of tensors.

A description is made of lists, dictionaries and plain values, as JSON has them. It names no class
and no function: reading one runs no code of whoever wrote it.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch

from dort_rewriter.deployment.plain import expect, items, mapping, text, whole
from dort_rewriter.errors import CallMismatchError, CaptureError

_PLAIN = (bool, int, float, str)

_TORCH: Mapping[str, type] = {
    "dtype": torch.dtype,
    "layout": torch.layout,
    "memory_format": torch.memory_format,
}


class Record(dict[str, Any]):
    """A result that had named fields: ``result["logits"]`` and ``result.logits`` are the same."""

    def __init__(self, fields: Iterable[tuple[str, Any]]) -> None:
        super().__init__(fields)
        self.__dict__.update(self)  # a field may have the name of a method: values, items

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the result has no field {name!r}")


# -- writing ------------------------------------------------------------------------------------


def describe_arguments(value: Any, tensors: list[torch.Tensor], where: str) -> Any:
    """Describe a nested argument; its tensors are added to a list, whose places it names.

    Raises :class:`CaptureError` for what a description cannot hold.
    """

    def place_of(part: Any, _: str) -> Any:
        if not isinstance(part, torch.Tensor):
            return None
        tensors.append(part)
        return {"tensor": len(tensors) - 1}

    def refuse(part: Any, where: str) -> Any:
        raise CaptureError(
            f"The argument {where} is a {type(part).__name__}: arguments of what is saved are "
            "tensors, numbers, texts, None, and lists, tuples and dictionaries of them. Keep "
            "other objects in the module (its tensors as buffers, if they are written to), or "
            "pass what they hold."
        )

    return _describe(value, where, place_of, refuse)


def describe_results(value: Any, place_of: Callable[[Any, str], Any]) -> Any:
    """Describe a nested result.

    ``place_of`` describes tensors, and what stands for numbers that the graph computes; None
    leaves a value to this function. Raises :class:`CaptureError` for what it cannot hold.
    """

    def describe_record(part: Any, where: str) -> Any:
        names = _names_of(type(part)) if isinstance(part, tuple) else ()
        found = [(n, getattr(part, n)) for n in names] or _fields_of(part)
        if found is None:
            raise CaptureError(
                f"The result{where} is a {type(part).__name__}: results of what is saved are "
                "tensors, numbers, texts, None, and lists, tuples, dictionaries and dataclasses "
                "of them. Return what it holds, or leave it out (of a transformer, "
                "use_cache=False leaves out the cache)."
            )
        fields = [[n, _describe(v, f"{where}.{n}", place_of, describe_record)] for n, v in found]
        return {"named": [type(part).__name__, fields]} if names else {"record": fields}

    return _describe(value, "", place_of, describe_record)


def _describe(
    value: Any,
    where: str,
    place_of: Callable[[Any, str], Any],
    describe_other: Callable[[Any, str], Any],
) -> Any:
    def inner(part: Any, key: Any) -> Any:
        return _describe(part, f"{where}[{key!r}]", place_of, describe_other)

    if (place := place_of(value, where)) is not None:
        return place
    if type(value) in (list, tuple, torch.Size):
        kind = "list" if type(value) is list else "tuple"
        return {kind: [inner(part, i) for i, part in enumerate(value)]}
    if type(value) is dict and all(type(key) in (str, int) for key in value):
        return {"dict": [[key, inner(part, key)] for key, part in value.items()]}
    plain = _plain(value)
    return describe_other(value, where) if plain is None else plain


def _names_of(cls: type) -> tuple[str, ...]:
    """The names of a named tuple, or of what torch returns in place of one (``torch.topk``)."""
    if hasattr(cls, "n_sequence_fields"):
        return tuple(getattr(cls, "__match_args__", ()))
    return tuple(getattr(cls, "_fields", ()))


def _fields_of(value: Any) -> list[tuple[str, Any]] | None:
    """The fields of a dataclass, or the items of a dictionary of another class with texts as
    keys; outputs of transformers are both, and leave out what is None."""
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return list(value.items())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(f.name, getattr(value, f.name)) for f in dataclasses.fields(value)]
    return None


def _plain(value: Any) -> dict[str, Any] | None:
    """Describe a value without parts; None when it is none."""
    if value is None or type(value) in _PLAIN:
        return {"value": value}
    if isinstance(value, torch.device):
        return {"torch": ["device", str(value)]}
    for name, kind in _TORCH.items():
        if isinstance(value, kind):
            return {"torch": [name, str(value).removeprefix("torch.")]}
    return None


# -- arguments ----------------------------------------------------------------------------------


def collect(description: Any, value: Any, where: str, tensors: list[torch.Tensor]) -> None:
    """Add the tensors of an argument to a list, in the order of its description.

    Raises :class:`CallMismatchError` when it is another kind of argument.
    """
    (kind, wanted), *_ = description.items()
    if kind == "tensor":
        if not isinstance(value, torch.Tensor):
            raise CallMismatchError(
                f"The argument {where} was a tensor when it was saved, not {value!r}."
            )
        tensors.append(value)
    elif kind in ("list", "tuple"):
        accepted = list if kind == "list" else tuple
        if not isinstance(value, accepted) or len(value) != len(wanted):
            raise CallMismatchError(
                f"The argument {where} was a {kind} of {len(wanted)} when it was saved, not "
                f"{_brief(value)}."
            )
        for i, (part, inner) in enumerate(zip(wanted, value, strict=True)):
            collect(part, inner, f"{where}[{i}]", tensors)
    elif kind == "dict":
        keys = [key for key, _ in wanted]
        if not isinstance(value, Mapping) or set(value) != set(keys):
            raise CallMismatchError(
                f"The argument {where} was a dictionary of {keys} when it was saved, not "
                f"{_brief(value)}."
            )
        for key, part in wanted:
            collect(part, value[key], f"{where}[{key!r}]", tensors)
    elif not _is_same(_plain(value), description):
        raise CallMismatchError(
            f"The argument {where} was {_spell(description)} when it was saved, which is part of "
            f"the graph; it cannot be {_brief(value)}."
        )


def _is_same(given: Any, saved: Any) -> bool:
    if given is None or given.keys() != saved.keys():
        return False
    (a,), (b,) = given.values(), saved.values()
    if isinstance(a, float) and isinstance(b, float):
        same_sign = math.copysign(1.0, a) == math.copysign(1.0, b)
        return (a == b and same_sign) or (math.isnan(a) and math.isnan(b))
    return type(a) is type(b) and bool(a == b)


def _spell(description: Mapping[str, Any]) -> str:
    if "torch" in description:
        return str(description["torch"][1])
    if "object" in description:
        return "left to its default"
    return repr(description["value"])


def _brief(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of {tuple(value.shape)}"
    if isinstance(value, Mapping):
        return f"a {type(value).__name__} of {list(value)}"
    if isinstance(value, list | tuple):
        return f"a {type(value).__name__} of {len(value)}"
    return repr(value)


def tensors_in(description: Any) -> Iterator[int]:
    """Yield the places of the tensors of an argument, in the order of its description.

    Raises :class:`ValueError` for what is no description.
    """
    ((kind, wanted),) = mapping(description, "argument").items()
    if kind == "tensor":
        yield whole(wanted, "tensor of a call")
    elif kind in ("list", "tuple"):
        for part in items(wanted):
            yield from tensors_in(part)
    elif kind == "dict":
        for key, part in map(items, items(wanted)):
            expect(type(key) in (str, int), "key", key)
            yield from tensors_in(part)
    elif kind != "object":
        _constant(kind, wanted)


# -- results ------------------------------------------------------------------------------------


def rebuild(description: Any) -> Callable[[Mapping[str, list[Any]]], Any]:
    """What makes a result of its parts: lists of values by kind (``result``, ``argument``, ...).

    Raises :class:`ValueError` for what is no description.
    """
    ((kind, wanted),) = mapping(description, "result").items()
    if kind in ("result", "argument", "state"):
        index = whole(wanted, "place")
        return lambda parts: parts[kind][index]
    if kind in ("list", "tuple"):
        return _sequence(list if kind == "list" else tuple, wanted)
    if kind in ("dict", "record"):
        pairs = [items(pair, count=2) for pair in items(wanted)]
        keys = [k for k, _ in pairs]
        expect(all(type(k) in (str, int) for k in keys), "list of keys", keys)
        expect(kind == "dict" or all(type(k) is str for k in keys), "list of fields", keys)
        made = [rebuild(v) for _, v in pairs]
        cls = dict if kind == "dict" else Record
        return lambda parts: cls(zip(keys, (m(parts) for m in made), strict=True))
    if kind == "named":
        name, fields = items(wanted, count=2)
        pairs = [items(pair, count=2) for pair in items(fields)]
        # NOTE: namedtuple() checks that these are identifiers.
        named = collections.namedtuple(text(name), [text(n) for n, _ in pairs])  # type: ignore[misc]
        made = [rebuild(v) for _, v in pairs]
        return lambda parts: named(*(m(parts) for m in made))
    constant = _constant(kind, wanted)
    return lambda parts: constant


def _sequence(cls: type, wanted: Any) -> Callable[[Mapping[str, list[Any]]], Any]:
    made = [rebuild(v) for v in items(wanted)]
    return lambda parts: cls(m(parts) for m in made)


def _constant(kind: str, wanted: Any) -> Any:
    if kind == "value" and (wanted is None or type(wanted) in _PLAIN):
        return wanted
    if kind == "torch":
        name, word = map(text, items(wanted, count=2))
        if name == "device":
            return torch.device(word)
        found = getattr(torch, word, None)
        if name in _TORCH and isinstance(found, _TORCH[name]):
            return found
    raise ValueError(f"a value is described as {kind} {wanted!r}")


def leaves(description: Any) -> Iterator[tuple[str, Any]]:
    """Yield the leaves of a description: their kinds, and what they hold."""
    ((kind, wanted),) = description.items()
    if kind in ("list", "tuple"):
        for part in wanted:
            yield from leaves(part)
    elif kind in ("dict", "record", "named"):
        for _, part in wanted[1] if kind == "named" else wanted:
            yield from leaves(part)
    else:
        yield kind, wanted
