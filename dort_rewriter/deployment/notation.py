"""The calling convention of a graph as JSON, and back.

NOTE: the executor writes Python out of a signature. What is read from a file is therefore built of
known records, every field of the type it has to have, and names operators that only make views:
a file that was tampered with is refused, and runs nothing.
"""

from __future__ import annotations

import dataclasses
from typing import Any, get_args

import torch

from dort_rewriter.runtime.spelling import find_step
from dort_rewriter.signature import (
    FROM_PAIRS,
    GraphSignature,
    InputDim,
    InputSize,
    InputSlot,
    OutputSlot,
    SizeExpression,
    SlotKind,
    ViewStep,
    Writes,
)

__all__ = [
    "read_dtype",
    "read_signature",
    "read_size",
    "read_writes",
    "spell",
    "spell_dtype",
    "spell_signature",
    "spell_writes",
]

_KINDS = get_args(SlotKind)
_SOURCES = ("model", "input", "output", "constant", "size")
_OPERATIONS = ("add", "sub", "mul", "floordiv", "mod", "min", "max")
_OWN_STEPS = (FROM_PAIRS, "getitem", "lay_out", "permute_")


# -- writing ------------------------------------------------------------------------------------


def spell_dtype(dtype: torch.dtype | None) -> str | None:
    """The name of an element type."""
    return None if dtype is None else str(dtype).removeprefix("torch.")


def spell_signature(signature: GraphSignature) -> dict[str, Any]:
    """A signature as plain data."""
    return {
        "inputs": [_spell_record(slot) for slot in signature.inputs],
        "outputs": [_spell_record(slot) for slot in signature.outputs],
    }


def spell_writes(writes: Writes) -> dict[str, Any]:
    """What may be written in place, as plain data."""
    return {"arguments": dict(writes.arguments), "checks": sorted(writes.checks)}


def _spell_record(record: Any) -> dict[str, Any]:
    return {f.name: spell(getattr(record, f.name)) for f in dataclasses.fields(record) if f.init}


def spell(value: Any) -> Any:
    """A value of a signature: plain ones as they are, others as a list that begins with a kind."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case tuple() | list():
            return ["tuple", *map(spell, value)]
        case torch.dtype():
            return ["dtype", spell_dtype(value)]
        case torch.device():
            return ["device", str(value)]
        case torch.layout() | torch.memory_format():
            return [type(value).__name__, str(value).removeprefix("torch.")]
        case InputSize(index):
            return ["InputSize", index]
        case InputDim(index, dim):
            return ["InputDim", index, dim]
        case SizeExpression(op, args):
            return ["SizeExpression", op, *map(spell, args)]
        case ViewStep(op, args, kwargs):
            return ["ViewStep", op, spell(args), spell(kwargs)]
    raise TypeError(f"a signature holds a {type(value).__name__}: {value!r}")


# -- reading ------------------------------------------------------------------------------------


def read_dtype(name: Any) -> torch.dtype:
    """The element type of a name; :class:`ValueError` when there is none."""
    found = getattr(torch, name, None) if isinstance(name, str) else None
    if not isinstance(found, torch.dtype):
        raise ValueError(f"there is no element type {name!r}")
    return found


def read_signature(data: Any) -> GraphSignature:
    """The signature of plain data; :class:`ValueError` when it is none."""
    inputs = tuple(_input(slot) for slot in data["inputs"])
    outputs = tuple(
        _output(slot, len(inputs), position) for position, slot in enumerate(data["outputs"])
    )
    return GraphSignature(inputs=inputs, outputs=outputs)


def read_writes(data: Any, signature: GraphSignature) -> Writes:
    """What may be written in place; :class:`ValueError` when it does not fit the signature."""
    arguments = {_name(k): _index(v, len(signature.inputs)) for k, v in data["arguments"].items()}
    if not set(arguments) <= set(signature.output_names):
        raise ValueError("a result is written in place that there is not")
    return Writes(arguments=arguments, checks=frozenset(_name(c) for c in data["checks"]))


def read_size(data: Any, inputs: int) -> Any:
    """A number, or how to compute it from the inputs of a graph."""
    size = _read(data)
    if type(size) not in (int, InputSize, InputDim, SizeExpression):
        raise ValueError(f"{data!r} is no size")
    _check_places(size, inputs)
    return size


def _input(data: Any) -> InputSlot:
    slot = InputSlot(**{name: _read(value) for name, value in data.items()})
    _expect(slot.kind in _KINDS, "kind", slot.kind)
    if slot.name is not None:
        _name(slot.name)
    _check_common(slot)
    if slot.order is not None:
        ranks = tuple(range(len(slot.shape)))
        _expect(tuple(sorted(slot.order)) == ranks, "order", slot.order)
    return slot


def _output(data: Any, inputs: int, position: int) -> OutputSlot:
    slot = OutputSlot(**{name: _read(value) for name, value in data.items()})
    _expect(slot.kind in _KINDS and slot.source in _SOURCES, "source", slot.source)
    _name(slot.name)
    _check_common(slot)
    limit = {"input": inputs, "output": position}.get(slot.source, 1_000_000)
    _index(slot.index, limit)
    _expect(slot.value is None or type(slot.value) in (bool, int, float), "value", slot.value)
    if slot.size is not None:
        read_size(spell(slot.size), inputs)
    _expect(all(isinstance(step, ViewStep) for step in slot.views), "views", slot.views)
    _check_places(slot.views, inputs)
    return slot


def _check_common(slot: InputSlot | OutputSlot) -> None:
    _expect(slot.dtype is None or isinstance(slot.dtype, torch.dtype), "dtype", slot.dtype)
    _expect(slot.device is None or isinstance(slot.device, torch.device), "device", slot.device)
    sizes = all(type(d) in (int, str) for d in slot.shape)
    _expect(isinstance(slot.shape, tuple) and sizes, "shape", slot.shape)


def _check_places(value: Any, inputs: int) -> None:
    """Check that what is computed from arguments names arguments that there are."""
    match value:
        case InputSize(index) | InputDim(index, _):
            _index(index, inputs)
        case SizeExpression(_, args):
            _check_places(args, inputs)
        case ViewStep(_, args, kwargs):
            _check_places((args, kwargs), inputs)
        case tuple():
            for item in value:
                _check_places(item, inputs)


def _read(data: Any) -> Any:
    if data is None or type(data) in (bool, int, float, str):
        return data
    kind, *rest = data
    match kind:
        case "tuple":
            return tuple(map(_read, rest))
        case "dtype":
            return read_dtype(rest[0])
        case "device":
            return torch.device(str(rest[0]))
        case "layout" | "memory_format":
            found = getattr(torch, str(rest[0]), None)
            _expect(isinstance(found, torch.layout | torch.memory_format), kind, rest)
            return found
        case "InputSize":
            return InputSize(_index(rest[0]))
        case "InputDim":
            return InputDim(_index(rest[0]), _index(rest[1]))
        case "SizeExpression":
            operands = tuple(map(_read, rest[1:]))
            _expect(rest[0] in _OPERATIONS and len(operands) > 1, "operation", rest[0])
            return SizeExpression(rest[0], operands)
        case "ViewStep":
            return _step(*rest)
    raise ValueError(f"a signature holds a {kind!r}")


def _step(op: Any, args: Any, kwargs: Any) -> ViewStep:
    """A view: an operator of ATen that aliases its first argument and writes nothing."""
    _name(op)
    if op not in _OWN_STEPS:
        _expect(op.startswith("aten::"), "view", op)
        first, *others = find_step(op)._schema.arguments  # type: ignore[attr-defined]
        is_view = first.alias_info is not None and not first.alias_info.is_write
        written = any(o.alias_info is not None and o.alias_info.is_write for o in others)
        _expect((is_view or op in _RESHAPING) and not written, "view", op)
    named = _read(kwargs)
    for name, _ in named:
        _expect(isinstance(name, str) and name.isidentifier(), "argument", name)
    return ViewStep(op, _read(args), named)


_RESHAPING = ("aten::as_strided_",)
"""Steps that change what a tensor shows in place."""


def _index(value: Any, limit: int = 1_000_000) -> int:
    _expect(type(value) is int and 0 <= value < limit, "place", value)
    return int(value)


def _name(value: Any) -> str:
    _expect(isinstance(value, str), "name", value)
    return str(value)


def _expect(holds: bool, what: str, value: Any) -> None:
    if not holds:
        raise ValueError(f"{value!r} is no {what}")
