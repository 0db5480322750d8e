"""Inputs kept in files, with the model that fails on them: dumped here, replayed elsewhere.

The layout is that of ONNX's own test data::

    folder/model.onnx
    folder/test_case_0/   the inputs: runtime/stored_inputs.py
"""

from __future__ import annotations

import filecmp
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir
import torch

from dort_rewriter.dtypes import to_torch
from dort_rewriter.errors import OptionError
from dort_rewriter.files import staged
from dort_rewriter.options import OptimizationLevel
from dort_rewriter.runtime.executor import Executor
from dort_rewriter.runtime.model_files import write_model
from dort_rewriter.runtime.ort_values import array_to_tensor
from dort_rewriter.runtime.providers import CPU, ProviderSpec
from dort_rewriter.runtime.session import (
    Session,
    create_session,
    session_options,
)
from dort_rewriter.runtime.stored_inputs import (
    case_numbers,
    describe_inputs,
    read_case,
    store_case,
)
from dort_rewriter.signature import GraphSignature, InputSlot, OutputSlot
from dort_rewriter.tools.models import AnyModel, load_model

MODEL = "model.onnx"


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
    stored = describe_inputs(inputs)
    try:
        target.mkdir(parents=True, exist_ok=True)
        case = f"test_case_{1 + max(case_numbers(target), default=-1)}"
        with staged(target) as aside:
            if model is not None:
                _store_model(load_model(model), aside, target)
            store_case(stored, aside / case)
    except OSError as error:
        raise OptionError(f"Nothing can be written to {str(folder)!r}: {error}.") from error
    return target / case


def _store_model(model: ir.Model, aside: Path, target: Path) -> None:
    write_model(model, aside / MODEL)
    existing = target / MODEL
    if existing.exists() and not filecmp.cmp(aside / MODEL, existing, shallow=False):
        raise OptionError(
            f"{str(target)!r} holds the cases of another model: choose another folder."
        )


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
        found = sorted(case_numbers(source)) if source.is_dir() else []
        raise OptionError(f"{str(source)!r} has no test case {test_case}; it has {found}.")
    inputs = read_case(case)
    if not (source / MODEL).exists():
        return Replay(functools.partial(_refuse, source), inputs)
    model = load_model(source / MODEL)
    options = session_options(optimization_level=ort_optimization_level)
    try:
        session = create_session(model, providers=providers, options=options)
    except (OSError, ValueError) as error:  # weights in a file that is missing, or too short
        raise OptionError(f"{str(source / MODEL)!r} cannot be read: {error}.") from error
    return Replay(_runner(model, session), inputs)


def _refuse(folder: Path, *_: Any) -> Any:
    raise OptionError(
        f"{str(folder)!r} holds inputs but no model: dump_for_debug(folder, *inputs, model=...) "
        "stores one."
    )


def _runner(model: ir.Model, session: Session) -> Callable[..., tuple[torch.Tensor, ...]]:
    """A model with a tensor for each input and each output."""
    graph = model.graph
    read = [v for v in graph.inputs if v.name not in graph.initializers]
    slots = tuple(InputSlot(name=v.name, kind="tensor", dtype=_dtype(v)) for v in read)
    outputs = tuple(
        OutputSlot(kind="tensor", source="model", index=i, name=v.name or "", dtype=_dtype(v))
        for i, v in enumerate(graph.outputs)
    )
    executor = Executor(session, GraphSignature(inputs=slots, outputs=outputs))

    def run(*arguments: Any) -> tuple[torch.Tensor, ...]:
        if len(arguments) != len(slots):
            names = ", ".join(v.name or "" for v in read)
            raise OptionError(
                f"The model reads {len(slots)} inputs ({names}), {len(arguments)} are given."
            )
        return executor(*map(_as_tensor, arguments, slots))

    return run


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
