"""Load a saved model: a session and the way to call it, without Dynamo, tracing or export."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from dort_rewriter.deployment.folder import (
    StoredTensor,
    made_by,
    read_description,
    stored_model,
)
from dort_rewriter.deployment.interface import (
    from_size,
)
from dort_rewriter.deployment.notation import (
    read_signature,
    read_writes,
)
from dort_rewriter.deployment.reading import (
    read_interface,
    read_plan,
    state_of,
    tensors_by_name,
)
from dort_rewriter.deployment.steps import Step, gradients_of_ones, write_back
from dort_rewriter.deployment.structures import leaves, rebuild
from dort_rewriter.errors import CallMismatchError, ExecutionError
from dort_rewriter.forks import SafeLock, at_fork
from dort_rewriter.options import OrtBackendOptions, from_mapping
from dort_rewriter.runtime.executor import Executor
from dort_rewriter.runtime.session import Session, create_session
from dort_rewriter.runtime.session_settings import session_settings

__all__ = [
    "SESSION_OPTIONS",
    "SavedModel",
    "load",
    "settings_now",
    "spell_settings",
]

SESSION_OPTIONS = (
    "arena",
    "intra_op_threads",
    "ort_optimization_level",
    "pause_torch_threads",
    "preallocate_output",
    "spinning",
)
"""The options that a session is built with each time."""


class SavedModel:
    """A model that was saved: called as what was compiled, it gives the same numbers.

    It computes gradients when it was saved with ``training=True``. What results of another class
    than tuples, lists and dictionaries were has the same fields: ``result.logits`` and
    ``result["logits"]``. Calls may overlap, unless the model writes to its buffers.
    """

    def __init__(
        self, folder: Path, content: Mapping[str, Any], named: Mapping[str, Any], *, check: bool
    ) -> None:
        self.folder = folder
        self._content = content
        self._lock = SafeLock()
        self._run_graph: Executor | Step | None = None
        try:
            stored = [StoredTensor.read(t) for t in content["tensors"]]
            self._signature = read_signature(content["graph"]["signature"])
            self._interface = read_interface(content, len(self._signature.inputs))
            self._updates = [int(i) for i in content["updates"]]
            self._plan = read_plan(content["backward"], self._signature)
            self._rebuild = rebuild(content["result"])
            self._check_places(len(stored))
            self._state = state_of(folder, content, stored, named, check=check)
            self._let_derive(stored)
            self._run_graph = self._build()
        except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise ExecutionError(
                f"{folder} holds a damaged model: save it again ({error})."
            ) from error
        self._names = [t.name for t in stored]
        self._settings = content["settings"]
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
        tensors = self._interface.tensors_of(args, kwargs)
        results = self._run(self._arguments(tensors))
        return self._rebuild({"result": results, "argument": tensors, "state": self._state})

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
        if (now := settings_now()) != self._settings:
            raise CallMismatchError(
                f"It was saved under {spell_settings(self._settings)}, and is called under "
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
        updated = [given[i] for i in self._updates]
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
        content = self._content
        forward = _build(self.folder, content, "model", content["graph"])
        if self._plan is None:
            return forward
        backward = _build(self.folder, content, "backward", content["backward"])
        return Step(self._plan, forward, backward)

    def _let_derive(self, stored: Sequence[StoredTensor]) -> None:
        """Let what gets a gradient require one."""
        if self._plan is None:
            self._state = [t.detach() if t.requires_grad else t for t in self._state]
            return
        inputs = self._interface.inputs
        wanted = {inputs[i][1] for i in self._plan.wanted if inputs[i][0] == "state"}
        for place, (tensor, known) in enumerate(zip(self._state, stored, strict=True)):
            if known.offset is not None:
                tensor.requires_grad_(place in wanted)
            elif tensor.requires_grad != (place in wanted):
                required = "a" if place in wanted else "no"
                raise ExecutionError(
                    f"{known.name!r} of the model required {required} gradient when it was saved: "
                    "give the module as it was, or save it again."
                )

    def _check_places(self, stored: int) -> None:
        """Refuse a description of which a part names something that there is not."""
        tensors, inputs = len(self._interface.tensors), len(self._signature.inputs)
        limits = {"argument": tensors, "state": stored}
        places = [p for p in self._interface.inputs if p[0] in limits]
        made = len(self._signature.outputs) - len(self._updates)
        if self._plan is not None:  # behind those of the call is what the backward graph needs
            made = self._plan.results
        for kind, place in (*places, *leaves(self._content["result"])):
            limit = limits.get(kind, made if kind == "result" else None)
            if limit is not None and not 0 <= int(place) < limit:
                raise ValueError(f"{kind} {place} is named, of {limit}")
        if len(self._interface.inputs) != inputs or made < 0:
            raise ValueError("the graph has other arguments or results")
        if not all(0 <= i < inputs for i in self._updates):
            raise ValueError("an argument is changed that there is not")

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
    made, here = content.get("made_by"), made_by()
    if not isinstance(made, dict) or made != here:
        other = {k: str(v) for k, v in dict(made or {}).items() if here.get(k) != v}
        mine = {k: here.get(k, "none") for k in other}
        raise ExecutionError(
            f"{folder} was saved with {_spell_versions(other)}; here is {_spell_versions(mine)}: "
            "a model is loaded by the versions that saved it. Save it again."
        )
    return SavedModel(folder, content, tensors_by_name(content, model, folder), check=check)


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


def _build(
    folder: Path, content: Mapping[str, Any], kind: str, graph: Mapping[str, Any]
) -> Executor:
    """Build the session of a graph of a saved model."""
    files = content["files"]
    options = from_mapping(
        OrtBackendOptions, {name: content["options"][name] for name in SESSION_OPTIONS}
    )
    session: Session | None = None
    if kind in files:
        model = stored_model(folder, files, kind, torch_kernels=bool(graph["torch_kernels"]))
        providers = [(str(name), dict(given)) for name, given in graph["providers"]]
        settings = session_settings(options, model, providers)
        session = create_session(model, providers=providers, options=settings)
    signature = read_signature(graph["signature"])
    return Executor(
        session,
        signature,
        name=str(graph["name"]),
        writes=read_writes(graph["writes"], signature),
        preallocate=options.preallocate_output,
        pause_torch_threads=options.pause_torch_threads,
    )
