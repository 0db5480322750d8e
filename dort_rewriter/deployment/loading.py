"""Load a saved model: sessions and the way to call them, without Dynamo, tracing or export."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from dort_rewriter import notebook
from dort_rewriter.deployment.folder import made_by, read_description, spell_versions
from dort_rewriter.deployment.interface import describe_calls
from dort_rewriter.deployment.loaded_calls import LoadedCall, choose, group
from dort_rewriter.deployment.reading import (
    DAMAGE,
    Description,
    damage_is_named,
    read_whole,
    state_of,
    tensors_by_name,
)
from dort_rewriter.deployment.steps import gradients_of_ones
from dort_rewriter.errors import CallMismatchError, DortError, ExecutionError
from dort_rewriter.forks import at_fork

SHOWN_CALLS = 8
"""Graphs whose arguments the text of a model names."""


class SavedModel:
    """A model that was saved: called as what was compiled, it gives the same numbers.

    It has a graph for each call that was saved, and uses the first that takes the arguments; all
    share their weights. It computes gradients when it was saved with ``training=True``. What
    results of another class than tuples, lists and dictionaries were has the same fields:
    ``result.logits`` and ``result["logits"]``. Calls may overlap, unless the model writes to its
    buffers.
    """

    def __init__(
        self,
        folder: Path,
        saved: Description,
        named: Mapping[str, Any],
        *,
        check: bool,
        holds_forms: bool = False,
    ) -> None:
        self.folder = folder
        self._saved = saved
        models = [
            saved.models(folder, i, holds_forms=holds_forms) for i in range(len(saved.calls))
        ]
        self._state = state_of(folder, saved, named, check=check)
        self._let_derive()
        self._calls = [LoadedCall(call, self._state) for call in saved.calls]
        self._groups = group(self._calls)
        options = saved.session_options()
        for call, files in zip(self._calls, models, strict=True):
            call.build(files, options)
        _loaded.add(self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model.

        Raises :class:`CallMismatchError` for arguments that it was not saved for.
        """
        try:
            self._check_settings()
            call, tensors, given = choose(self._groups, args, kwargs)
            results = call.run(given)
            parts = {"result": results, "argument": tensors, "state": self._state}
            return call.saved.rebuild(parts)
        except (DortError, torch.cuda.OutOfMemoryError):
            raise
        except DAMAGE as error:
            raise ExecutionError(
                f"{self.folder} holds a model that cannot be called so ({error})."
            ) from error

    def compute(
        self, place: int, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[list[Any], list[torch.Tensor | None]]:
        """Run one of the calls that were saved; the results of its graph, which no structure
        holds, and the gradients of what gets one, for gradients of ones."""
        self._check_settings()
        call, _, given = choose([[self._calls[place]]], args, kwargs)
        if call.plan is None:
            return call.run(given), []
        with torch.enable_grad():
            results = call.run(list(given))
            derived = [results[i] for i in call.plan.derived]
            wanted = [given[i] for i in call.plan.wanted]
            return results, gradients_of_ones(derived, wanted)

    def __repr__(self) -> str:
        shown = describe_calls([call.interface for call in self._calls[:SHOWN_CALLS]])
        more = [f"{left} more"] if (left := len(self._calls) - len(shown)) else []
        return f"SavedModel({str(self.folder)!r}, {' | '.join([*shown, *more])})"

    def _repr_html_(self) -> str:
        """Its graphs and its weights, for notebooks."""
        calls = describe_calls([call.interface for call in self._calls])
        kept = sum(t.numel() * t.itemsize for t in self._state)
        gradients = any(call.plan is not None for call in self._calls)
        return "".join(
            [
                notebook.heading(f"SavedModel {self.folder}"),
                notebook.table(enumerate(calls, 1), ("graph", "takes")),
                notebook.text(
                    f"{len(self._state)} tensors, {kept:,} bytes, "
                    f"{'with' if gradients else 'no'} gradients; called under "
                    f"{spell_settings(self._saved.settings)}."
                ),
            ]
        )

    @property
    def state(self) -> dict[str, torch.Tensor]:
        """The parameters, buffers and constants that calls use, by name: a static cache is
        cleared by ``model.state["cache"].zero_()``."""
        return {t.name: s for t, s in zip(self._saved.tensors, self._state, strict=True)}

    def parameters(self) -> Iterator[torch.Tensor]:
        """What calls use that gets a gradient, for an optimizer."""
        return (t for t in self._state if t.requires_grad)

    def _check_settings(self) -> None:
        if (now := settings_now()) != self._saved.settings:
            raise CallMismatchError(
                f"It was saved under {spell_settings(self._saved.settings)}, and is called under "
                f"{spell_settings(now)}."
            )

    def _let_derive(self) -> None:
        """Let what gets a gradient require one."""
        wanted = {
            call.arguments.inputs[i][1]
            for call in self._saved.calls
            if call.plan is not None
            for i in call.plan.wanted
            if call.arguments.inputs[i][0] == "state"
        }
        if all(call.plan is None for call in self._saved.calls):
            self._state = [t.detach() if t.requires_grad else t for t in self._state]
            return
        for place, (tensor, known) in enumerate(
            zip(self._state, self._saved.tensors, strict=True)
        ):
            if known.offset is not None:
                tensor.requires_grad_(place in wanted)
            elif tensor.requires_grad != (place in wanted):
                required = "a" if place in wanted else "no"
                raise ExecutionError(
                    f"{known.name!r} of the model required {required} gradient when it was saved: "
                    "give the module as it was, or save it again."
                )

    def forget_inherited(self) -> None:
        """In a forked child, leave the sessions of the parent alone: the next calls build some."""
        for call in self._calls:
            call.forget_inherited()


def forms_of(model: SavedModel) -> Iterator[tuple[str, bytes]]:
    """Yield what providers have compiled of a model while it is saved, by the name of its file."""
    for place, call in enumerate(model._calls):
        for kind, form in call.forms().items():
            yield f"{kind} {place} compiled", form


_loaded: weakref.WeakSet[SavedModel] = weakref.WeakSet()


def _forget_inherited() -> None:
    for model in list(_loaded):
        model.forget_inherited()


at_fork(in_child=_forget_inherited)


def load(
    path: str | os.PathLike[str],
    model: torch.nn.Module | Mapping[str, torch.Tensor] | None = None,
    *,
    check: bool = True,
) -> SavedModel:
    """Load what :func:`save` wrote: a callable that takes the arguments of the compiled model.

    Args:
        path: the folder that was given to :func:`save`.
        model: the module (or its ``state_dict()``) whose tensors are used, for what was saved
            with ``weights="reference"``.
        check: False leaves out reading the weights through for their digest, which takes about a
            second for each 2 GB.

    Raises:
        ExecutionError: other versions of torch, onnxruntime or this package saved it, files are
            damaged, or tensors do not fit. The message has the reason.
    """
    folder = Path(path).absolute()
    content = read_description(folder)
    while True:
        try:
            return _load(folder, content, model, check=check)
        except ExecutionError:  # noqa: PERF203 - rarely twice
            if (again := read_description(folder)) == content:
                raise
            content = again  # another process has saved meanwhile


def _load(folder: Path, content: Mapping[str, Any], model: object, *, check: bool) -> SavedModel:
    made, here = content.get("made_by"), made_by()
    if not isinstance(made, dict) or made != here:
        known = made if isinstance(made, dict) else {}
        other = {k: str(v) for k, v in known.items() if here.get(k) != v}
        mine = {k: here.get(k, "none") for k in other}
        raise ExecutionError(
            f"{folder} was saved with {spell_versions(other)}; here is {spell_versions(mine)}: "
            "a model is loaded by the versions that saved it. Save it again."
        )
    with damage_is_named(folder):
        saved = read_whole(content)
    named = tensors_by_name(saved, model, folder)
    with damage_is_named(folder):
        return SavedModel(folder, saved, named, check=check)


def settings_now() -> dict[str, Any]:
    """What of torch's state changes what a call computes."""
    narrow = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
    return {
        "autocast": None if narrow is None else str(narrow),
        "default_dtype": str(torch.get_default_dtype()),
    }


def spell_settings(settings: Mapping[str, Any]) -> str:
    """What :func:`settings_now` gave, in words."""
    autocast = f"autocast of {settings['autocast']}" if settings["autocast"] else "no autocast"
    return f"{autocast}, default type {settings['default_dtype']}"
