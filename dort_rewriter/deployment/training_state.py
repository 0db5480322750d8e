"""The state of an exported training step: from torch to the folder, and back."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Sequence
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
    steps: int | None
    """How many the optimizer has made with it; None where that changes nothing."""


def written(model: torch.nn.Module) -> torch.nn.Module:
    """The model that was given to ``torch.compile``, or a model itself."""
    found: torch.nn.Module = getattr(model, "_orig_mod", model)
    return found


def own_tensors(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The parameters and buffers of a model, each once, under the first of its names."""
    found: dict[int, tuple[str, torch.Tensor]] = {}
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        found.setdefault(id(tensor), (name, tensor))
    return dict(found.values())


def as_stored(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor as files have it: complex numbers are pairs, along a last axis."""
    tensor = tensor.detach()
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def as_held(stored: torch.Tensor, held: torch.Tensor) -> torch.Tensor:
    """What :func:`as_stored` made of a tensor, as a tensor like ``held``."""
    if not held.is_complex():
        return stored
    return torch.view_as_complex(stored.contiguous())


def trained_of(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, trainable: Collection[str] | None
) -> list[Trained]:
    """The parameters that are trained."""
    names = {id(p): name for name, p in model.named_parameters()}
    if trainable is not None and (unknown := set(trainable) - set(names.values())):
        raise ExportError(f"The model has no parameter {sorted(unknown)[0]!r}.")
    found = []
    for i, group in enumerate(optimizer.param_groups):
        options = options_of(optimizer, group)
        for p in group["params"]:
            name = names.get(id(p))
            if name is None:
                raise ExportError("The optimizer has a parameter that is none of the model's.")
            if not (p.requires_grad if trainable is None else name in trainable):
                continue
            state, steps = state_of(optimizer, options, p)
            stored = {key: as_stored(value) for key, value in state.items()}
            found.append(Trained(name, p, i, options, stored, steps))
    return found


def steps_of(trained: Sequence[Trained]) -> int:
    """How many steps an optimizer has made."""
    first = {t.steps: t.name for t in reversed(trained) if t.steps is not None}
    if len(first) > 1:
        said = ", ".join(f"{first[steps]!r} {steps}" for steps in sorted(first))
        raise ExportError(f"The optimizer has made more steps with some parameters: {said}.")
    return next(iter(first), 0)


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


class _Folder:
    """The folder of a training step beside a model, which has the same tensors.

    Raises :class:`ExportError`, which names what only one of them has.
    """

    def __init__(self, folder: str | os.PathLike[str], model: torch.nn.Module) -> None:
        self.place = Path(folder)
        self.description, parts = self._read()
        self.state: dict[str, torch.Tensor] = self._read_state()
        self.model = model = written(model)
        self.named = own_tensors(model)
        whole = f"{DESCRIPTION} of {self.place}"
        _require_same(whole, parts, STATE, self.state)
        of_model = [name for name, part in parts.items() if part == "model"]
        _require_same(str(self.place), of_model, "the model", self.named)
        for name, held in self.named.items():
            shape, wanted = self.state[name].shape, as_stored(held).shape
            if shape != wanted:
                raise ExportError(
                    f"{name!r} is of shape {tuple(shape)} in {self.place}, and of "
                    f"{tuple(wanted)} in the model."
                )

    def _read(self) -> tuple[dict[str, Any], dict[str, str]]:
        """The description, and whose each tensor of the state is."""
        try:
            content = (self.place / DESCRIPTION).read_text(encoding="utf-8")
            found: dict[str, Any] = json.loads(content)
            if found["format"] != FORMAT:
                raise ExportError(f"{self.place} has the format {found['format']}, not {FORMAT}.")
            return found, dict(found["state"])
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise ExportError(f"{self.place} holds no training step: {error}") from error

    def _read_state(self) -> dict[str, torch.Tensor]:
        module = require_safetensors()
        try:
            return dict(module.load_file(str(self.place / STATE)))
        except Exception as error:  # of safetensors, in Rust
            raise ExportError(f"{self.place / STATE} cannot be read: {error}") from error

    def require_optimizer(self, optimizer: torch.optim.Optimizer) -> list[Trained]:
        """What an optimizer keeps of the parameters that the folder trains.

        Raises :class:`ExportError` where the folder is of another optimizer.
        """
        said, kind = self.description["optimizer"], type(optimizer).__name__
        if kind != said["name"]:
            raise ExportError(f"The optimizer is {kind}, and {self.place} is of {said['name']}.")
        rates, groups = self.description["learning_rates"], optimizer.param_groups
        if len(rates) != len(groups):
            raise ExportError(
                f"The optimizer has {len(groups)} groups, and {self.place} has {len(rates)}."
            )
        trained = trained_of(self.model, optimizer, said["state"])
        names = {t.name for t in trained}
        if missing := [name for name in said["state"] if name not in names]:
            raise ExportError(
                f"The optimizer has no {_listed(missing)}, which {self.place} trains."
            )
        for t in trained:
            of_both = [f"{t.name}.{key}" for key in said["state"][t.name]]
            mine = [f"{t.name}.{key}" for key in t.state]
            _require_same(str(self.place), of_both, "the optimizer", mine)
        return trained


def _require_same(
    first: str, names: Collection[str], second: str, others: Collection[str]
) -> None:
    """Raise :class:`ExportError` where two have not the same names."""
    only = [
        f"only {who} has {_listed(missing)}"
        for who, missing in (
            (first, [name for name in names if name not in others]),
            (second, [name for name in others if name not in names]),
        )
        if missing
    ]
    if only:
        raise ExportError(f"They do not fit: {'; '.join(only)}.")


def _listed(names: Sequence[str], most: int = 5) -> str:
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(repr, names[:most])) + rest


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
        ExportError: the folder is of another model or optimizer, or its state has other names
            than it should: what is missing and what is unknown is named. Nothing is changed.
    """
    found = _Folder(folder, model)
    if optimizer is not None:
        found.require_optimizer(optimizer)
    state = found.state
    with torch.no_grad():
        for name, held in found.named.items():
            held.copy_(as_held(state[name], held))
    if optimizer is None:
        return
    said = found.description["optimizer"]
    steps = int(state[said["steps"]])
    for name, keys in said["state"].items():
        p = found.model.get_parameter(name)
        kept = {key: as_held(state[file_name], p) for key, file_name in keys.items()}
        write_state(optimizer, p, kept, steps)
    rates = found.description["learning_rates"]
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(state[rate])
        elif torch.tensor(group["lr"], dtype=state[rate].dtype) != state[rate]:
            group["lr"] = float(state[rate])  # else it is the number before it was rounded


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
        ExportError: the folder is of another model or optimizer; what only one of them has is
            named. Nothing is written.
    """
    found = _Folder(folder, model)
    state = found.state
    for name, held in found.named.items():
        state[name] = as_stored(held).clone().contiguous().cpu()
    if optimizer is not None:
        said = found.description["optimizer"]
        trained = found.require_optimizer(optimizer)
        for t in trained:
            for key, value in t.state.items():
                state[said["state"][t.name][key]] = value.contiguous().cpu()
        state[said["steps"]] = torch.tensor(steps_of(trained), dtype=torch.int64)
        rates = found.description["learning_rates"]
        for rate, group in zip(rates, optimizer.param_groups, strict=True):
            state[rate] = torch.tensor(float(group["lr"]), dtype=state[rate].dtype)
    with staged(found.place) as aside:
        require_safetensors().save_file(state, str(aside / STATE))
