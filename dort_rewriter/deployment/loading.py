"""Load a saved model: a session and the way to call it, without Dynamo, tracing or export."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from dort_rewriter.deployment.folder import ModelFiles, made_by, read_description
from dort_rewriter.deployment.interface import from_size
from dort_rewriter.deployment.reading import (
    DAMAGE,
    Description,
    SavedGraph,
    damage_is_named,
    read_whole,
    state_of,
    tensors_by_name,
)
from dort_rewriter.deployment.steps import Step, gradients_of_ones, write_back
from dort_rewriter.errors import CallMismatchError, DortError, ExecutionError
from dort_rewriter.forks import SafeLock, at_fork
from dort_rewriter.options import OrtBackendOptions
from dort_rewriter.runtime.executor import Executor
from dort_rewriter.runtime.session import Session, create_session
from dort_rewriter.runtime.session_settings import session_settings

__all__ = [
    "SavedModel",
    "load",
    "settings_now",
    "spell_settings",
]


class SavedModel:
    """A model that was saved: called as what was compiled, it gives the same numbers.

    It computes gradients when it was saved with ``training=True``. What results of another class
    than tuples, lists and dictionaries were has the same fields: ``result.logits`` and
    ``result["logits"]``. Calls may overlap, unless the model writes to its buffers.
    """

    def __init__(
        self, folder: Path, saved: Description, named: Mapping[str, Any], *, check: bool
    ) -> None:
        self.folder = folder
        self._saved = saved
        self._lock = SafeLock()
        self._signature = saved.forward.signature
        self._interface = saved.interface
        self._plan = saved.plan
        self._rebuild = saved.rebuild
        self._models = {
            kind: ModelFiles(folder, saved.files, kind, torch_kernels=graph.torch_kernels)
            for kind, graph in (("model", saved.forward), ("backward", saved.backward))
            if graph is not None and kind in saved.files
        }
        self._state = state_of(folder, saved, named, check=check)
        self._let_derive()
        self._run_graph: Executor | Step | None = self._build()
        self._names = [t.name for t in saved.stored]
        inputs = self._interface.inputs
        self._template = [self._state[v] if kind == "state" else None for kind, v in inputs]
        self._fed = [(i, v) for i, (kind, v) in enumerate(inputs) if kind == "argument"]
        self._sizes = [(i, v) for i, (kind, v) in enumerate(inputs) if kind == "size"]
        wanted = () if self._plan is None else self._plan.wanted
        self._derived = frozenset(v for i, v in self._fed if i in wanted)
        """The tensors of a call that get a gradient."""
        self._latest: tuple[list[Any], dict[int, int]] | None = None
        """What tensors a call had that was checked, and the sizes computed of them."""
        _loaded.add(self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model.

        Raises :class:`CallMismatchError` for arguments that it was not saved for.
        """
        try:
            tensors = self._interface.tensors_of(args, kwargs)
            results = self._run(self._arguments(tensors))
            return self._rebuild({"result": results, "argument": tensors, "state": self._state})
        except (DortError, torch.cuda.OutOfMemoryError):
            raise
        except DAMAGE as error:
            raise ExecutionError(
                f"{self.folder} holds a model that cannot be called so ({error})."
            ) from error

    def compute(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[list[Any], list[torch.Tensor | None]]:
        """Run the model; the results of its graph, which no structure holds, and the gradients of
        what gets one, for gradients of ones."""
        given = self._arguments(self._interface.tensors_of(args, kwargs))
        if self._plan is None:
            return self._run(given), []
        with torch.enable_grad():
            results = self._run(list(given))
            derived = [results[i] for i in self._plan.derived]
            wanted = [given[i] for i in self._plan.wanted]
            return results, gradients_of_ones(derived, wanted)

    def __repr__(self) -> str:
        wanted = ", ".join(f"{t.name}: {t.shape_text()}" for t in self._interface.tensors)
        return f"SavedModel({str(self.folder)!r}, {wanted})"

    @property
    def state(self) -> dict[str, torch.Tensor]:
        """The parameters, buffers and constants that calls use, by name: a static cache is
        cleared by ``model.state["cache"].zero_()``."""
        return dict(zip(self._names, self._state, strict=True))

    def parameters(self) -> Iterator[torch.Tensor]:
        """What calls use that gets a gradient, for an optimizer."""
        return (t for t in self._state if t.requires_grad)

    def _arguments(self, tensors: Sequence[torch.Tensor]) -> list[Any]:
        """The arguments of the graph, checked."""
        if torch.is_grad_enabled():
            self._check_gradients(tensors)
        if (now := settings_now()) != self._saved.settings:
            raise CallMismatchError(
                f"It was saved under {spell_settings(self._saved.settings)}, and is called under "
                f"{spell_settings(now)}."
            )
        if self._interface.same or self._interface.apart:
            self._interface.check_memory(tensors, self._state)
        key = [(t.shape, t.stride(), t.dtype, t.device, type(t)) for t in tensors]
        plain = not any(t.is_neg() or t.is_conj() for t in tensors)
        if plain and self._latest is not None and self._latest[0] == key:
            return self._filled(tensors, self._latest[1])
        fitted = self._interface.fit(tensors)
        args = self._filled(fitted, {})
        sizes = {i: from_size(size, args) for i, size in self._sizes}
        args = self._filled(fitted, sizes)
        self._interface.check_sizes(fitted, args)
        if plain and all(a is b for a, b in zip(fitted, tensors, strict=True)):
            self._latest = (key, sizes)
        return args

    def _filled(self, tensors: Sequence[torch.Tensor], sizes: Mapping[int, int]) -> list[Any]:
        """The arguments of the graph, out of tensors and sizes of a call."""
        args = self._template.copy()
        for i, k in self._fed:
            args[i] = tensors[k]
        for i, size in sizes.items():
            args[i] = size
        return args

    def _check_gradients(self, tensors: Sequence[torch.Tensor]) -> None:
        for k, tensor in enumerate(tensors):
            if tensor.requires_grad and k not in self._derived:
                name = self._interface.tensors[k].name
                raise CallMismatchError(
                    f"The argument {name} requires a gradient, and what was saved computes none "
                    "of it: call it under torch.no_grad(), detach the argument, or save the call "
                    "with training=True and such an argument."
                )

    def _run(self, given: list[Any]) -> list[Any]:
        """Run the graph, and bring new values to where they belong."""
        run = self._run_graph or self._prepare()
        if isinstance(run, Step):
            return run(given)
        updated = [given[i] for i in self._saved.updates]
        results = list(run.boxed(given))
        first = len(results) - len(updated)
        if updated:
            with torch.no_grad():
                write_back(updated, results[first:])
        return results[:first]

    def _prepare(self) -> Executor | Step:
        """Build the sessions."""
        with self._lock:
            if self._run_graph is None:
                self._run_graph = self._build()
            return self._run_graph

    def _build(self) -> Executor | Step:
        saved, models = self._saved, self._models
        forward = _build(saved.forward, models.get("model"), saved.options)
        if self._plan is None or saved.backward is None:
            return forward
        backward = _build(saved.backward, models.get("backward"), saved.options)
        return Step(self._plan, forward, backward)

    def _let_derive(self) -> None:
        """Let what gets a gradient require one."""
        if self._plan is None:
            self._state = [t.detach() if t.requires_grad else t for t in self._state]
            return
        inputs = self._interface.inputs
        wanted = {inputs[i][1] for i in self._plan.wanted if inputs[i][0] == "state"}
        for place, (tensor, known) in enumerate(zip(self._state, self._saved.stored, strict=True)):
            if known.offset is not None:
                tensor.requires_grad_(place in wanted)
            elif tensor.requires_grad != (place in wanted):
                required = "a" if place in wanted else "no"
                raise ExecutionError(
                    f"{known.name!r} of the model required {required} gradient when it was saved: "
                    "give the module as it was, or save it again."
                )

    def forget_inherited(self) -> None:
        """In a forked child, leave the session of the parent alone: the next call builds one."""
        run = self._run_graph
        runs = (run.forward, run.backward) if isinstance(run, Step) else (run,)
        sessions = [r.session for r in runs if r is not None and r.session is not None]
        if not all(s.survives_fork() for s in sessions):
            self._run_graph = None


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

    ``model`` is the module (or its ``state_dict()``) whose tensors are used, for what was saved
    with ``weights="reference"``. ``check=False`` leaves out reading the weights through for their
    digest, which takes about a second for each 2 GB.

    Raises :class:`ExecutionError`, with the reason, for what other versions of torch, onnxruntime
    or this package saved, damaged files, and tensors that do not fit.
    """
    folder = Path(path).absolute()
    content = read_description(folder)
    try:
        return _load(folder, content, model, check=check)
    except ExecutionError:
        if (again := read_description(folder)) == content:
            raise
        return _load(folder, again, model, check=check)  # another process has saved meanwhile


def _load(folder: Path, content: Mapping[str, Any], model: object, *, check: bool) -> SavedModel:
    made, here = content.get("made_by"), made_by()
    if not isinstance(made, dict) or made != here:
        known = made if isinstance(made, dict) else {}
        other = {k: str(v) for k, v in known.items() if here.get(k) != v}
        mine = {k: here.get(k, "none") for k in other}
        raise ExecutionError(
            f"{folder} was saved with {_spell_versions(other)}; here is {_spell_versions(mine)}: "
            "a model is loaded by the versions that saved it. Save it again."
        )
    with damage_is_named(folder):
        saved = read_whole(content)
    named = tensors_by_name(saved, model, folder)
    with damage_is_named(folder):
        return SavedModel(folder, saved, named, check=check)


def _spell_versions(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{k} {v}" if k not in v else v for k, v in versions.items()) or "no version"


def settings_now() -> dict[str, Any]:
    """What of torch's state changes what a call computes."""
    return {
        "autocast": _autocast(),
        "default_dtype": str(torch.get_default_dtype()),
    }


def _autocast() -> str | None:
    if not torch.is_autocast_enabled("cpu"):
        return None
    return str(torch.get_autocast_dtype("cpu"))


def spell_settings(settings: Mapping[str, Any]) -> str:
    """What :func:`settings_now` gave, in words."""
    autocast = f"autocast of {settings['autocast']}" if settings["autocast"] else "no autocast"
    return f"{autocast}, default type {settings['default_dtype']}"


# -- reading ------------------------------------------------------------------------------------


def _build(graph: SavedGraph, files: ModelFiles | None, options: OrtBackendOptions) -> Executor:
    """Build the session of a graph of a saved model."""
    session: Session | None = None
    if files is not None:
        model = files.read()
        settings = session_settings(options, model, graph.providers)
        session = create_session(model, providers=graph.providers, options=settings)
        files.keep()
    return Executor(
        session,
        graph.signature,
        name=graph.name,
        writes=graph.writes,
        preallocate=options.preallocate_output,
        pause_torch_threads=options.pause_torch_threads,
    )
