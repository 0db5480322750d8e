"""Inputs kept in files, with the model that fails on them: dumped here, replayed elsewhere.

The layout is that of ONNX's own test data::

    folder/model.onnx
    folder/test_case_0/input_0.pb, input_1.pb, ...   tensors, as ONNX stores them
    folder/test_case_0/inputs.json                   how they were given: numbers, lists, None

NOTE: no pickle in either direction: whoever opens such a folder runs nobody's code.
"""

from __future__ import annotations

import filecmp
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx_ir as ir
import torch
from google.protobuf.message import DecodeError

from dort_rewriter.dtypes import to_torch
from dort_rewriter.errors import ExportError, OptionError
from dort_rewriter.options import OptimizationLevel
from dort_rewriter.runtime.executor import Executor
from dort_rewriter.runtime.model_files import check_tensor, write_model
from dort_rewriter.runtime.providers import CPU, ProviderSpec
from dort_rewriter.runtime.reference import array_to_tensor, tensor_to_array
from dort_rewriter.runtime.session import (
    Session,
    create_session,
    session_options,
)
from dort_rewriter.signature import GraphSignature, InputSlot, OutputSlot
from dort_rewriter.tools.models import AnyModel, load_model

__all__ = ["Replay", "dump_for_debug", "replay_dumped_data"]

MODEL, INPUTS = "model.onnx", "inputs.json"
FORMAT = 1
"""The version of ``inputs.json``."""


class Replay(NamedTuple):
    """What a folder held: ``run(*inputs)`` computes the results of the model again."""

    run: Callable[..., tuple[torch.Tensor, ...]]
    """Runs the model in onnxruntime; raises :class:`OptionError` when no model was dumped."""
    inputs: tuple[Any, ...]
    """The inputs as they were given; tensors are on the CPU."""


def dump_for_debug(folder: str | Path, *inputs: Any, model: AnyModel | None = None) -> Path:
    """Write inputs, and the model they are for, so that :func:`replay_dumped_data` reads them.

    Each call adds a test case; the cases of a folder are for one model.

    Args:
        folder: created if needed.
        inputs: tensors, arrays, numbers, text, None, and lists, tuples and mappings of them.
        model: written once beside the inputs.

    Returns:
        The folder of the case: ``<folder>/test_case_<N>``.

    Raises:
        OptionError: an input has no safe form, or the folder cannot be written to.

    """
    target = Path(folder)
    tensors: list[onnx.TensorProto] = []
    described = [_describe(value, f"input {i}", tensors) for i, value in enumerate(inputs)]
    try:
        target.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".dort-debug-", dir=target) as staged:
            if model is not None:
                _store_model(load_model(model), Path(staged), target)
            return _store_case(described, tensors, Path(staged), target)
    except OSError as error:
        raise OptionError(f"Nothing can be written to {str(folder)!r}: {error}.") from error


def _store_model(model: ir.Model, staged: Path, target: Path) -> None:
    write_model(model, staged / MODEL)
    existing = target / MODEL
    if existing.exists() and not filecmp.cmp(staged / MODEL, existing, shallow=False):
        raise OptionError(
            f"{str(target)!r} holds the cases of another model: choose another folder."
        )
    for path in staged.iterdir():
        path.replace(target / path.name)


def _store_case(
    described: list[Any], tensors: list[onnx.TensorProto], staged: Path, target: Path
) -> Path:
    """Write a case aside, then give it its name: it is there complete or not at all."""
    case = staged / "case"
    case.mkdir()
    for i, tensor in enumerate(tensors):
        (case / f"input_{i}.pb").write_bytes(tensor.SerializeToString())
    text = json.dumps({"format": FORMAT, "inputs": described}, indent=1)
    (case / INPUTS).write_text(text, encoding="utf-8")
    number = 1 + max(_case_numbers(target), default=-1)
    return case.rename(target / f"test_case_{number}")


def _case_numbers(folder: Path) -> Iterator[int]:
    for path in folder.glob("test_case_*"):
        if (number := path.name.removeprefix("test_case_")).isdecimal():
            yield int(number)


def _describe(value: Any, place: str, tensors: list[onnx.TensorProto]) -> Any:
    """Return what JSON can hold; tensors go to a list, and are named by their position in it."""
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
    except (TypeError, ExportError) as error:
        raise OptionError(f"{place}: ONNX stores no {value.dtype}.") from error
    tensors.append(proto)
    if isinstance(value, np.ndarray):
        return {"array": len(tensors) - 1}
    return {"tensor": len(tensors) - 1, "requires_grad": value.requires_grad}


def replay_dumped_data(
    folder: str | Path,
    test_case: int = 0,
    *,
    providers: tuple[ProviderSpec, ...] = (CPU,),
    ort_optimization_level: OptimizationLevel | None = None,
) -> Replay:
    """Read what :func:`dump_for_debug` wrote: ``run, inputs = replay_dumped_data(folder)``.

    Args:
        folder: the folder that was given to :func:`dump_for_debug`.
        test_case: the number of the case.
        providers: execution providers of the session.
        ort_optimization_level: ONNX Runtime's own optimizations; None leaves its default.

    Raises:
        OptionError: there is no such case, or its files are damaged.

    """
    source = Path(folder)
    case = source / f"test_case_{test_case}"
    if not case.is_dir():
        found = sorted(_case_numbers(source)) if source.is_dir() else []
        raise OptionError(f"{str(source)!r} has no test case {test_case}; it has {found}.")
    inputs = _read_case(case)
    if not (source / MODEL).exists():
        return Replay(_no_model(source), inputs)
    model = load_model(source / MODEL)
    options = session_options(optimization_level=ort_optimization_level)
    try:
        session = create_session(model, providers=providers, options=options)
    except (OSError, ValueError) as error:  # weights in a file that is missing, or too short
        raise OptionError(f"{str(source / MODEL)!r} cannot be read: {error}.") from error
    return Replay(_Run(model, session), inputs)


_DAMAGES = (
    *(OSError, DecodeError, ArithmeticError, AttributeError, LookupError),
    *(RuntimeError, TypeError, ValueError),
)
"""What ends the reading of files that anybody may have written."""


def _read_case(case: Path) -> tuple[Any, ...]:
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


def _no_model(folder: Path) -> Callable[..., Any]:
    def run(*arguments: Any) -> Any:
        raise OptionError(
            f"{str(folder)!r} holds inputs but no model: dump_for_debug(folder, *inputs, "
            "model=...) stores one."
        )

    return run


class _Run:
    """A model with a tensor for each input and each output."""

    def __init__(self, model: ir.Model, session: Session) -> None:
        graph = model.graph
        self.inputs = [v for v in graph.inputs if v.name not in graph.initializers]
        self.executor = Executor(
            session,
            GraphSignature(
                inputs=tuple(
                    InputSlot(name=v.name, kind="tensor", dtype=_dtype(v)) for v in self.inputs
                ),
                outputs=tuple(
                    OutputSlot(
                        kind="tensor", source="model", index=i, name=v.name or "", dtype=_dtype(v)
                    )
                    for i, v in enumerate(graph.outputs)
                ),
            ),
        )

    def __call__(self, *arguments: Any) -> tuple[torch.Tensor, ...]:
        if len(arguments) != len(self.inputs):
            names = ", ".join(v.name or "" for v in self.inputs)
            raise OptionError(
                f"The model reads {len(self.inputs)} inputs ({names}), {len(arguments)} are given."
            )
        slots = self.executor.signature.inputs
        return self.executor(
            *(_as_tensor(a, slot) for a, slot in zip(arguments, slots, strict=True))
        )


def _as_tensor(value: Any, slot: InputSlot) -> Any:
    if isinstance(value, np.ndarray):
        return array_to_tensor(value)
    if isinstance(value, bool | int | float):
        return torch.tensor(value, dtype=slot.dtype)
    return value


def _dtype(value: ir.Value) -> torch.dtype:
    if value.dtype is None:
        raise OptionError(f"The model does not say of which type {value.name!r} is.")
    return to_torch(value.dtype)
