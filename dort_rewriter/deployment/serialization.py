"""Records as plain data, as JSON has it, and back.

A record is a dictionary of its fields; sizes and steps of views are lists that begin with their
kind. What is read has every field of its record, each of the type that the record declares.

NOTE: the executor writes Python out of a signature. A file that was tampered with is refused, and
runs nothing: it is built of known records, and names operators that only make views.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import operator
from collections.abc import Callable, Mapping
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import torch

from dort_rewriter.deployment.plain import expect, flag, items, mapping, text, whole
from dort_rewriter.dtypes import CONVERTIBLE
from dort_rewriter.errors import CaptureError
from dort_rewriter.runtime.argument_encoding import STRIDED
from dort_rewriter.signature import (
    FROM_PAIRS,
    Dim,
    GraphSignature,
    InputDim,
    InputSize,
    InputSlot,
    OutputSlot,
    Scalar,
    Size,
    SizeExpression,
    ViewStep,
    Writes,
    places_in,
)

MOST_DIMENSIONS = 64
"""What torch takes."""

MOST_VIEWS = 1_000
"""The views of a result, one of another: code is made of each."""

_OPERATIONS = ("add", "sub", "mul", "floordiv", "mod", "min", "max")


# -- writing ------------------------------------------------------------------------------------


def spell(value: Any) -> Any:
    """A record, or what stands in one, as plain data."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case torch.dtype() | torch.device():
            return str(value).removeprefix("torch.")
        case InputSize(index):
            return ["InputSize", index]
        case InputDim(index, dim):
            return ["InputDim", index, dim]
        case SizeExpression(op, args):
            return ["SizeExpression", op, *map(spell, args)]
        case ViewStep(op, args, kwargs):
            if _WRITTEN_AS.get(op, op) not in _STEPS:
                raise CaptureError(
                    f"A result is a view by {op}, which a saved model does not take: return a "
                    "copy of it (clone())."
                )
            return ["ViewStep", op, _spell_argument(args), _spell_argument(kwargs)]
        case Mapping():
            return {key: spell(part) for key, part in value.items()}
        case tuple() | list():
            return [*map(spell, value)]
        case frozenset():
            return sorted(value)
    return {f.name: spell(getattr(value, f.name)) for f in dataclasses.fields(value) if f.init}


def _spell_argument(value: Any) -> Any:
    """An argument of a view: of those no type is declared."""
    match value:
        case tuple() | list():
            return ["tuple", *map(_spell_argument, value)]
        case torch.dtype():
            return ["dtype", str(value).removeprefix("torch.")]
    return spell(value)


# -- reading ------------------------------------------------------------------------------------


def read(kind: Any, data: Any) -> Any:
    """A value of a type out of plain data; :class:`ValueError`, or what Python raises, when it is
    none."""
    return _reader_of(kind)(data)


@functools.cache
def _reader_of(kind: Any) -> Callable[[Any], Any]:
    if (reader := _READERS.get(kind)) is not None:
        return reader
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Literal:
        return lambda data: text(data, f"one of {', '.join(parts)}", parts)
    if origin in (Union, UnionType) and NoneType in parts:
        others = (part for part in parts if part is not NoneType)
        other = _reader_of(functools.reduce(operator.or_, others))
        return lambda data: None if data is None else other(data)
    if origin is tuple and parts[-1] is Ellipsis:
        one = _reader_of(parts[0])
        return lambda data: tuple(map(one, items(data)))
    if origin is tuple:
        each = [*map(_reader_of, parts)]
        return lambda data: tuple(
            reader(part) for reader, part in zip(each, items(data, count=len(each)), strict=True)
        )
    if origin is frozenset:
        one = _reader_of(parts[0])
        return lambda data: frozenset(map(one, items(data)))
    if origin in (dict, collections.abc.Mapping):
        one = _reader_of(parts[1])
        return lambda data: {
            text(key): one(part) for key, part in mapping(data, "dictionary").items()
        }
    hints = get_type_hints(kind)
    fields = {f.name: _reader_of(hints[f.name]) for f in dataclasses.fields(kind) if f.init}

    def read_record(data: Any) -> Any:
        given = mapping(data, kind.__name__, fields)
        return kind(**{name: reader(given[name]) for name, reader in fields.items()})

    return read_record


def _read_dtype(name: Any) -> torch.dtype:
    found = getattr(torch, name, None) if isinstance(name, str) else None
    if not isinstance(found, torch.dtype):
        raise ValueError(f"there is no element type {name!r}")
    # Memory that shows a quantized type without its scales ends the process.
    known = found.is_floating_point or found.is_complex or found in CONVERTIBLE
    expect(known, "element type", name)
    return found


def _read_size(data: Any) -> Any:
    size = _read_argument(data)
    expect(_is_size(size), "size", data)
    return size


def _read_dim(data: Any) -> Any:
    return text(data) if isinstance(data, str) else whole(data, "size")


def _read_scalar(data: Any) -> Any:
    expect(type(data) in (bool, int, float), "value", data)
    return data


def _read_step(data: Any) -> ViewStep:
    step = _read_argument(data)
    expect(isinstance(step, ViewStep), "view", data)
    return step


def _read_argument(data: Any) -> Any:
    if data is None or type(data) in (bool, int, float, str):
        return data
    kind, *rest = items(data)
    match kind:
        case "tuple":
            return tuple(map(_read_argument, rest))
        case "dtype":
            return _read_dtype(rest[0])
        case "InputSize":
            return InputSize(whole(rest[0]))
        case "InputDim":
            return InputDim(whole(rest[0]), whole(rest[1]))
        case "SizeExpression":
            operands = tuple(map(_read_argument, rest[1:]))
            expect(all(map(_is_size, operands)) and len(operands) > 1, "size", operands)
            return SizeExpression(text(rest[0], "operation", _OPERATIONS), operands)  # type: ignore[arg-type]
        case "ViewStep":
            op, args, kwargs = rest
            return _checked_step(op, _read_argument(args), _read_argument(kwargs))
    raise ValueError(f"a signature holds a {kind!r}")


_READERS: Mapping[Any, Callable[[Any], Any]] = {
    Any: lambda data: data,
    bool: flag,
    int: whole,
    str: text,
    torch.device: lambda data: torch.device(text(data, "device")),
    torch.dtype: _read_dtype,
    Dim: _read_dim,
    Scalar: _read_scalar,
    Size: _read_size,
    ViewStep: _read_step,
}
"""What reads values that are no records."""


# -- the views that a saved model may take ------------------------------------------------------

_STEPS: Mapping[str, str] = {
    "aten::_conj": "",
    "aten::_neg_view": "",
    "aten::alias": "",
    "aten::as_strided": "size:sizes stride:sizes storage_offset:size?",
    "aten::detach": "",
    "aten::diagonal": "offset:int dim1:int dim2:int",
    "aten::expand": "size:sizes implicit:flag",
    "aten::permute": "dims:ints",
    "aten::select.int": "dim:int index:size",
    "aten::slice.Tensor": "dim:int start:size? end:size? step:size",
    "aten::split.Tensor": "split_size:size dim:int",
    "aten::split_with_sizes": "split_sizes:sizes dim:int",
    "aten::squeeze": "",
    "aten::squeeze.dim": "dim:int",
    "aten::squeeze.dims": "dim:ints",
    "aten::t": "",
    "aten::transpose.int": "dim0:int dim1:int",
    "aten::unbind.int": "dim:int",
    "aten::unfold": "dimension:int size:size step:size",
    "aten::unsqueeze": "dim:int",
    "aten::view": "size:sizes",
    "aten::view.dtype": "dtype:dtype",
    "aten::view_as_complex": "",
    "aten::view_as_real": "",
    "getitem": "index:int",
    "lay_out": "strides:sizes",
    "permute_": "order:ints",
    FROM_PAIRS: "",
    STRIDED: "size:sizes stride:sizes storage_offset:size?",
}
"""Names and kinds of the arguments after the tensor; those of ``?`` may be None. Those at the end
may be left out where torch has a default.

A file may not choose among the operators of torch: some do not check their arguments
(``aten::_reshape_alias`` and ``aten::as_strided_`` look at no storage). Of those that stand here
torch checks sizes, strides and offsets, against the tensor or its storage and without an overflow;
before ``as_strided_`` it is asked for that view.
"""

_WRITTEN_AS = {"aten::as_strided_": STRIDED}
"""Steps that a compiled call takes as they are, and a saved one takes with a check."""


def _checked_step(op: Any, args: Any, kwargs: Any) -> ViewStep:
    """A step that was read; :class:`ValueError` for one that is not saved."""
    op = text(op, "view")
    op = _WRITTEN_AS.get(op, op)
    expect(op in _STEPS, "view", op)
    kinds = dict(part.split(":") for part in _STEPS[op].split())
    names = list(kinds)
    expect(isinstance(args, tuple) and len(args) <= len(names), f"argument of {op}", args)
    given = dict(zip(names, args, strict=False))
    expect(isinstance(kwargs, tuple), "argument", kwargs)
    for name, value in kwargs:
        expect(name in kinds and name not in given, f"argument of {op}", name)
        given[name] = value
    for name, value in given.items():
        expect(_fits(value, kinds[name]), f"{name} of {op}", value)
    return ViewStep(op, args, kwargs)


def _fits(value: Any, kind: str) -> bool:
    match kind:
        case "int":
            return _is_size(value) and type(value) is int
        case "flag":
            return type(value) is bool
        case "dtype":
            return isinstance(value, torch.dtype)
        case "size":
            return _is_size(value)
        case "size?":
            return value is None or _is_size(value)
        case "ints":
            return isinstance(value, tuple) and all(type(v) is int and _is_size(v) for v in value)
    return isinstance(value, tuple) and all(map(_is_size, value))


def _is_size(value: Any) -> bool:
    """Whether a value is a number that torch takes, or how to compute one."""
    if type(value) is int:
        return bool(-(2**63) <= value < 2**63)
    return isinstance(value, InputSize | InputDim | SizeExpression)


# -- what has to hold of a signature ------------------------------------------------------------


def check_signature(signature: GraphSignature) -> None:
    """Raise :class:`ValueError` where a part names what there is not."""
    for slot in signature.inputs:
        _check_common(slot)
        order = slot.order
        is_order = order is None or sorted(order) == list(range(len(slot.shape)))
        expect(is_order, "order", order)
    for position, result in enumerate(signature.outputs):
        _check_common(result)
        limits = {"input": len(signature.inputs), "output": position}
        whole(result.index, "place", limit=limits.get(result.source, 1_000_000))
        _check_source(result, signature)
        expect(len(result.views) <= MOST_VIEWS, "number of views", len(result.views))
        expect((result.size is None) is (result.source != "size"), "size", result.size)
        for place in places_in((result.size, result.views)):
            whole(place.index, "place", limit=len(signature.inputs))


def _check_source(result: OutputSlot, signature: GraphSignature) -> None:
    """Raise :class:`ValueError` where a result is not what its source has."""
    match result.source:
        case "constant":
            fits = result.kind != "tensor"
        case "model":
            fits = result.kind == "tensor"
        case "size":
            fits = result.kind == "int"
        case source:
            slots: Any = signature.inputs if source == "input" else signature.outputs
            fits = result.kind == slots[result.index].kind
    expect(fits, f"kind of what is of the source {result.source}", result.kind)


def _check_common(slot: InputSlot | OutputSlot) -> None:
    expect(len(slot.shape) <= MOST_DIMENSIONS, "shape", slot.shape)
    expect(slot.kind != "tensor" or slot.dtype is not None, "type of a tensor", slot.dtype)


def check_writes(writes: Writes, signature: GraphSignature) -> None:
    """Raise :class:`ValueError` where what may be written in place does not fit a signature."""
    arguments = writes.arguments
    made = {s.name: s for s in signature.outputs if s.source == "model"}
    for name, index in arguments.items():
        slot = signature.inputs[whole(index, "place", limit=len(signature.inputs))]
        expect(name in made and slot.name is not None, "result that is written in place", name)
        # onnxruntime compares the sizes when it runs.
        given, result = (slot.dtype, slot.device), (made[name].made_dtype, made[name].device)
        fits = slot.kind == "tensor" and slot.order is None and not slot.is_complex
        expect(fits and given == result, "argument to write to", name)
    expect(len(set(arguments.values())) == len(arguments), "list of writes", arguments)
