"""The calling convention of a graph as JSON, and back.

NOTE: the executor writes Python out of a signature. What is read from a file is therefore built of
known records, every field of the type it has to have, and names operators that only make views:
a file that was tampered with is refused, and runs nothing.
"""

from __future__ import annotations

import dataclasses
from typing import Any, get_args

import torch

from dort_rewriter.deployment.plain import expect, items, mapping, text, whole
from dort_rewriter.deployment.view_steps import checked_step, is_saved, is_size
from dort_rewriter.dtypes import is_convertible
from dort_rewriter.errors import CaptureError
from dort_rewriter.signature import (
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
    "MOST_DIMENSIONS",
    "read_dtype",
    "read_signature",
    "read_size",
    "read_writes",
    "spell",
    "spell_dtype",
    "spell_signature",
    "spell_writes",
]

MOST_DIMENSIONS = 64
"""What torch takes."""

_KINDS = get_args(SlotKind)
_SOURCES = ("model", "input", "output", "constant", "size")
_OPERATIONS = ("add", "sub", "mul", "floordiv", "mod", "min", "max")


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
            if not is_saved(op):
                raise CaptureError(
                    f"A result is a view by {op}, which a saved model does not take: return a "
                    "copy of it (clone())."
                )
            return ["ViewStep", op, spell(args), spell(kwargs)]
    raise TypeError(f"a signature holds a {type(value).__name__}: {value!r}")


# -- reading ------------------------------------------------------------------------------------


def read_dtype(name: Any) -> torch.dtype:
    """The element type of a name; :class:`ValueError` when there is none."""
    found = getattr(torch, name, None) if isinstance(name, str) else None
    if not isinstance(found, torch.dtype):
        raise ValueError(f"there is no element type {name!r}")
    # Memory that shows a quantized type without its scales ends the process.
    known = found.is_floating_point or found.is_complex or is_convertible(found)
    expect(known, "element type", name)
    return found


def read_signature(data: Any) -> GraphSignature:
    """The signature of plain data; :class:`ValueError` when it is none."""
    data = mapping(data, "signature", ("inputs", "outputs"))
    inputs = tuple(map(_input, items(data["inputs"])))
    outputs = tuple(
        _output(slot, len(inputs), position)
        for position, slot in enumerate(items(data["outputs"]))
    )
    return GraphSignature(inputs=inputs, outputs=outputs)


def read_writes(data: Any, signature: GraphSignature) -> Writes:
    """What may be written in place; :class:`ValueError` when it does not fit the signature."""
    data = mapping(data, "list of writes", ("arguments", "checks"))
    written = mapping(data["arguments"], "list of writes")
    arguments = {text(k): _index(v, len(signature.inputs)) for k, v in written.items()}
    made = {s.name: s for s in signature.outputs if s.source == "model"}
    for name, index in arguments.items():
        slot = signature.inputs[index]
        expect(name in made and slot.name is not None, "result that is written in place", name)
        # onnxruntime compares the sizes when it runs.
        given, result = (slot.dtype, slot.device), (made[name].made_dtype, made[name].device)
        fits = slot.kind == "tensor" and slot.order is None and not slot.is_complex
        expect(fits and given == result, "argument to write to", name)
    expect(len(set(arguments.values())) == len(arguments), "list of writes", arguments)
    return Writes(arguments=arguments, checks=frozenset(map(text, items(data["checks"]))))


def read_size(data: Any, inputs: int) -> Any:
    """A number, or how to compute it from the inputs of a graph."""
    size = _read(data)
    expect(is_size(size), "size", data)
    _check_places(size, inputs)
    return size


def _input(data: Any) -> InputSlot:
    given = mapping(data, "argument", [f.name for f in dataclasses.fields(InputSlot)])
    slot = InputSlot(**{name: _read(value) for name, value in given.items()})
    expect(slot.kind in _KINDS, "kind", slot.kind)
    if slot.name is not None:
        text(slot.name)
    _check_common(slot)
    if slot.order is not None:
        ranks = list(range(len(slot.shape)))
        is_order = isinstance(slot.order, tuple) and sorted(slot.order) == ranks
        expect(is_order and all(type(d) is int for d in slot.order), "order", slot.order)
    return slot


def _output(data: Any, inputs: int, position: int) -> OutputSlot:
    given = mapping(data, "result", [f.name for f in dataclasses.fields(OutputSlot)])
    slot = OutputSlot(**{name: _read(value) for name, value in given.items()})
    expect(slot.kind in _KINDS and slot.source in _SOURCES, "source", slot.source)
    text(slot.name)
    _check_common(slot)
    limit = {"input": inputs, "output": position}.get(slot.source, 1_000_000)
    _index(slot.index, limit)
    expect(slot.value is None or type(slot.value) in (bool, int, float), "value", slot.value)
    expect((slot.size is None) is (slot.source != "size"), "size", slot.size)
    if slot.size is not None:
        expect(is_size(slot.size), "size", slot.size)
        _check_places(slot.size, inputs)
    steps = isinstance(slot.views, tuple) and all(isinstance(v, ViewStep) for v in slot.views)
    expect(steps, "list of views", slot.views)
    _check_places(slot.views, inputs)
    return slot


def _check_common(slot: InputSlot | OutputSlot) -> None:
    expect(slot.dtype is None or isinstance(slot.dtype, torch.dtype), "dtype", slot.dtype)
    expect(slot.device is None or isinstance(slot.device, torch.device), "device", slot.device)
    shape = slot.shape
    sizes = isinstance(shape, tuple) and all(type(d) in (int, str) for d in shape)
    expect(sizes and len(shape) <= MOST_DIMENSIONS, "shape", shape)
    expect(slot.kind != "tensor" or slot.dtype is not None, "type of a tensor", slot.dtype)


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
    kind, *rest = items(data)
    match kind:
        case "tuple":
            return tuple(map(_read, rest))
        case "dtype":
            return read_dtype(rest[0])
        case "device":
            return torch.device(str(rest[0]))
        case "layout" | "memory_format":
            found = getattr(torch, str(rest[0]), None)
            expect(isinstance(found, torch.layout | torch.memory_format), kind, rest)
            return found
        case "InputSize":
            return InputSize(_index(rest[0]))
        case "InputDim":
            return InputDim(_index(rest[0]), _index(rest[1]))
        case "SizeExpression":
            operands = tuple(map(_read, rest[1:]))
            expect(all(map(is_size, operands)) and len(operands) > 1, "size", operands)
            return SizeExpression(text(rest[0], "operation", _OPERATIONS), operands)  # type: ignore[arg-type]
        case "ViewStep":
            op, args, kwargs = rest
            return checked_step(op, _read(args), _read(kwargs))
    raise ValueError(f"a signature holds a {kind!r}")


def _index(value: Any, limit: int = 1_000_000) -> int:
    return whole(value, "place", limit=limit)
