"""The state of an exported training step: from torch to the folder, and back."""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dort_rewriter.deployment.training_updates import (
    Options,
    State,
    options_of,
    state_of,
    write_state,
)
from dort_rewriter.errors import ExportError
from dort_rewriter.files import staged

__all__ = [
    "DESCRIPTION",
    "FORMAT",
    "STATE",
    "Trained",
    "load_training_state",
    "require_safetensors",
    "save_training_state",
    "trained_of",
]

FORMAT = 1
DESCRIPTION, STATE = "training.json", "state.safetensors"


@dataclass(frozen=True)
class Trained:
    """A parameter that a step changes."""

    name: str
    parameter: torch.nn.Parameter
    group: int
    options: Options
    state: State


def trained_of(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, trainable: Collection[str] | None
) -> tuple[list[Trained], int]:
    """The parameters that are trained, and how many steps the optimizer has made."""
    names = {id(p): name for name, p in model.named_parameters()}
    if trainable is not None and (unknown := set(trainable) - set(names.values())):
        raise ExportError(f"The model has no parameter {sorted(unknown)[0]!r}.")
    found, counts = [], set()
    for i, group in enumerate(optimizer.param_groups):
        options = options_of(optimizer, group)
        for p in group["params"]:
            name = names.get(id(p))
            if name is None:
                raise ExportError("The optimizer has a parameter that is none of the model's.")
            if not (p.requires_grad if trainable is None else name in trainable):
                continue
            state, steps = state_of(optimizer, options, p)
            found.append(Trained(name, p, i, options, state))
            counts.add(steps)
    if len(counts) > 1:
        raise ExportError(f"The parameters have made {sorted(counts)} steps, not one number.")
    return found, max(counts, default=0)


def require_safetensors() -> Any:
    """What reads and writes states. Raises :class:`ExportError` that says how to install it."""
    try:
        import safetensors.torch
    except ImportError as error:
        raise ExportError(
            "The state of a training step is a file of safetensors: pip install "
            '"dort-rewriter[onnx-training]".'
        ) from error
    return safetensors.torch


def _description(folder: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
        if found["format"] != FORMAT:
            raise ExportError(f"{folder} has the format {found['format']}, not {FORMAT}.")
        return found
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ExportError(f"{folder} holds no training step: {error}") from error


def load_training_state(
    model: torch.nn.Module,
    folder: str | os.PathLike[str],
    optimizer: torch.optim.Optimizer | None = None,
) -> None:
    """Take the state of a folder into a model of torch, and into its optimizer.

    Args:
        model: gets the parameters and buffers.
        folder: what :func:`export_training_step` wrote, its state trained elsewhere.
        optimizer: gets its state and learning rates; None takes the model's part only.

    Raises:
        ExportError: the folder is not of this model. Nothing is changed.
    """
    place = Path(folder)
    description = _description(place)
    try:
        state = require_safetensors().load_file(str(place / STATE))
    except Exception as error:  # of safetensors, in Rust
        raise ExportError(f"{place / STATE} cannot be read: {error}") from error
    named = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for name, held in named.items():
        if name in state and tuple(state[name].shape) != tuple(held.shape):
            raise ExportError(
                f"{name!r} is of shape {tuple(state[name].shape)} in {place}, and of "
                f"{tuple(held.shape)} in the model."
            )
    kept = description["optimizer"]["state"]
    if missing := [name for name in kept if name not in state or name not in named]:
        raise ExportError(f"{missing[0]!r} is not in both the folder and the model.")
    with torch.no_grad():
        for name, held in named.items():
            if name in state:
                held.copy_(state[name])
    if optimizer is None:
        return
    steps = int(state[description["optimizer"]["steps"]])
    for name, keys in kept.items():
        found = {key: state[file_name] for key, file_name in keys.items()}
        write_state(optimizer, named[name], found, steps)
    rates = [float(state[rate]) for rate in description["learning_rates"]]
    for group, rate in zip(optimizer.param_groups, rates, strict=False):
        group["lr"] = rate


def save_training_state(
    model: torch.nn.Module,
    folder: str | os.PathLike[str],
    optimizer: torch.optim.Optimizer | None = None,
) -> None:
    """Put the present state of a model of torch, and of its optimizer, into a folder.

    Args:
        model: its parameters and buffers are written.
        folder: what :func:`export_training_step` wrote for it.
        optimizer: its state is written; without one, that in the folder stays as it is.

    Raises:
        ExportError: a tensor has another shape in the folder. Nothing is written. Names that the
            folder does not have are left out.
    """
    place = Path(folder)
    description = _description(place)
    module = require_safetensors()
    state = dict(module.load_file(str(place / STATE)))
    named = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for name, held in named.items():
        if name in state:
            if tuple(state[name].shape) != tuple(held.shape):
                raise ExportError(f"{name!r} has another shape in {place}.")
            state[name] = held.detach().clone().contiguous().cpu()
    if optimizer is not None:
        trained, steps = trained_of(model, optimizer, set(description["optimizer"]["state"]))
        for t in trained:
            for key, value in t.state.items():
                file_name = description["optimizer"]["state"][t.name][key]
                state[file_name] = value.contiguous().cpu()
        state[description["optimizer"]["steps"]] = torch.tensor(steps, dtype=torch.int64)
        for rate, group in zip(
            description["learning_rates"], optimizer.param_groups, strict=False
        ):
            state[rate] = torch.tensor(float(group["lr"]), dtype=torch.float32)
    with staged(place) as aside:
        module.save_file(state, str(aside / STATE))
