"""Inputs of a call in files: written when something went wrong, read to do it again.

The layout is that of ONNX's own test data::

    folder/test_case_0/input_0.pb, input_1.pb, ...   tensors, as ONNX stores them
    folder/test_case_0/inputs.json                   how they were given: numbers, lists, None

NOTE: no pickle in either direction: opening such a folder runs no code of its author.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx_ir as ir
import torch
from google.protobuf.message import DecodeError

from dort_rewriter.errors import ExportError, OptionError
from dort_rewriter.runtime.model_files import check_tensor
from dort_rewriter.runtime.ort_values import array_to_tensor, tensor_to_array

INPUTS = "inputs.json"
FORMAT = 1
"""The version of ``inputs.json``."""

_DAMAGES = (
    *(OSError, DecodeError, ArithmeticError, AttributeError, LookupError),
    *(RuntimeError, TypeError, ValueError),
)
"""What ends the reading of files that anybody may have written."""


class StoredInputs(NamedTuple):
    """Inputs in a form that files hold."""

    described: list[Any]
    tensors: list[onnx.TensorProto]


def describe_inputs(inputs: Sequence[Any]) -> StoredInputs:
    """Inputs as files hold them; raise :class:`OptionError` when one has no safe form."""
    tensors: list[onnx.TensorProto] = []
    described = [_describe(value, f"input {i}", tensors) for i, value in enumerate(inputs)]
    return StoredInputs(described, tensors)


def store_case(inputs: StoredInputs, case: Path) -> None:
    """Write a case to a folder, which is made."""
    described, tensors = inputs
    case.mkdir()
    for i, tensor in enumerate(tensors):
        (case / f"input_{i}.pb").write_bytes(tensor.SerializeToString())
    text = json.dumps({"format": FORMAT, "inputs": described}, indent=1)
    (case / INPUTS).write_text(text, encoding="utf-8")


def case_numbers(folder: Path) -> Iterator[int]:
    """Yield the numbers of the cases that a folder holds."""
    for path in folder.glob("test_case_*"):
        if (number := path.name.removeprefix("test_case_")).isdecimal():
            yield int(number)


def _describe(value: Any, place: str, tensors: list[onnx.TensorProto]) -> Any:
    """What JSON can hold; tensors go to a list, and are named by their position in it."""
    if value is None or type(value) in (bool, int, str):
        return value
    if isinstance(value, torch.SymBool | torch.SymInt):
        return _describe(int(value) if isinstance(value, torch.SymInt) else bool(value), place, [])
    if isinstance(value, float | torch.SymFloat):
        return {"float": float(value).hex()}
    if isinstance(value, torch.Tensor | np.ndarray):
        return _describe_tensor(value, place, tensors)
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {"dict": {k: _describe(v, f"{place}[{k!r}]", tensors) for k, v in value.items()}}
    if isinstance(value, list | tuple):
        items = [_describe(v, f"{place}[{i}]", tensors) for i, v in enumerate(value)]
        return {"list" if isinstance(value, list) else "tuple": items}
    raise OptionError(
        f"{place} is a {type(value).__name__}: only tensors, arrays, numbers, text, None, lists, "
        "tuples and mappings with text as keys are stored, since nothing is pickled."
    )


def _describe_tensor(
    value: torch.Tensor | np.ndarray[Any, Any], place: str, tensors: list[onnx.TensorProto]
) -> Any:
    try:
        array = tensor_to_array(value) if isinstance(value, torch.Tensor) else value
        proto = ir.to_proto(ir.Tensor(np.array(array, order="C")))
    except (TypeError, ir.serde.SerdeError, ExportError) as error:
        raise OptionError(f"{place}: ONNX stores no {value.dtype}.") from error
    tensors.append(proto)
    if isinstance(value, np.ndarray):
        return {"array": len(tensors) - 1}
    return {"tensor": len(tensors) - 1, "requires_grad": value.requires_grad}


def read_case(case: Path) -> tuple[Any, ...]:
    """The inputs of a case; raise :class:`OptionError` when its files are damaged."""
    try:
        content = json.loads((case / INPUTS).read_text(encoding="utf-8"))
        if content["format"] != FORMAT:
            raise ValueError(f"format {content['format']!r}, not {FORMAT}")
        if not isinstance(content["inputs"], list):
            raise TypeError(f"{type(content['inputs']).__name__} instead of a list of inputs")
        return tuple([_restore(item, case) for item in content["inputs"]])
    except _DAMAGES as error:
        raise OptionError(
            f"{str(case)!r} is damaged, or was not written by dump_for_debug: {error!r}."
        ) from error


def _restore(item: Any, case: Path) -> Any:
    """Undo :func:`_describe`: each mapping has its kind as the first key."""
    if not isinstance(item, dict):
        return item
    if not item:
        raise ValueError("an input without a kind")
    kind, content = next(iter(item.items()))
    if kind == "array":
        return _read_tensor(case / f"input_{int(content)}.pb")
    if kind == "tensor":
        values = _read_tensor(case / f"input_{int(content)}.pb")
        return array_to_tensor(values).requires_grad_(bool(item["requires_grad"]))
    if kind == "float":
        return float.fromhex(content)
    if kind == "dict":
        return {key: _restore(value, case) for key, value in content.items()}
    if kind in ("list", "tuple"):
        items = [_restore(value, case) for value in content]
        return items if kind == "list" else tuple(items)
    raise ValueError(f"unknown kind {kind!r}")


def _read_tensor(path: Path) -> np.ndarray[Any, Any]:
    proto = onnx.TensorProto.FromString(path.read_bytes())
    check_tensor(proto)
    return np.asarray(ir.from_proto(proto).numpy())
