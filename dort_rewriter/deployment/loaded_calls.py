"""The calls of a loaded model: which of them takes some arguments, and the graph that it runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from dort_rewriter.deployment.folder import ModelFiles
from dort_rewriter.deployment.interface import MORE_SIZES, from_size
from dort_rewriter.deployment.reading import SavedCall, SavedGraph
from dort_rewriter.deployment.steps import Step, write_back
from dort_rewriter.errors import CallMismatchError
from dort_rewriter.forks import SafeLock
from dort_rewriter.options import OrtBackendOptions
from dort_rewriter.runtime.executor import Executor
from dort_rewriter.runtime.session import (
    Session,
    create_session,
    new_settings,
    session_settings,
)

SHOWN = 4
"""Graphs of which an error says why they do not take a call."""


class LoadedCall:
    """A call that was saved, with the tensors that its graph takes besides the arguments."""

    def __init__(self, saved: SavedCall, state: Sequence[torch.Tensor]) -> None:
        self.saved = saved
        self.interface = saved.arguments
        self.plan = saved.plan
        inputs: Sequence[tuple[str, Any]] = self.interface.inputs
        self._template = [state[v] if kind == "state" else None for kind, v in inputs]
        self._state = state
        self._fed = [(i, v) for i, (kind, v) in enumerate(inputs) if kind == "argument"]
        self._sizes = [(i, v) for i, (kind, v) in enumerate(inputs) if kind == "size"]
        wanted = () if self.plan is None else self.plan.wanted
        self._derived = frozenset(v for i, v in self._fed if i in wanted)
        """The tensors of a call that get a gradient."""
        self._latest: tuple[list[Any], dict[int, int]] | None = None
        """What tensors a call had that was checked, and the sizes computed of them."""
        self._models: Mapping[str, ModelFiles] = {}
        self._options = OrtBackendOptions()
        self._run_graph: Executor | Step | None = None
        self._lock = SafeLock()

    def build(self, models: Mapping[str, ModelFiles], options: OrtBackendOptions) -> None:
        """Build the sessions of its graphs, whose models are given by kind."""
        self._models, self._options = models, options
        self._prepare()

    def forms(self) -> dict[str, bytes]:
        """What providers have compiled of its graphs while it is saved, by kind."""
        made = {kind: files.form.made for kind, files in self._models.items()}
        return {kind: form for kind, form in made.items() if form is not None}

    # -- arguments ------------------------------------------------------------------------------

    def arguments(self, tensors: Sequence[torch.Tensor], key: list[Any] | None) -> list[Any]:
        """The arguments of the graph for the tensors of a call, checked.

        ``key`` is what :func:`key_of` says of them. Raises :class:`CallMismatchError`.
        """
        if torch.is_grad_enabled():
            self._check_gradients(tensors)
        if self.interface.same or self.interface.apart:
            self.interface.check_memory(tensors, self._state)
        if (known := self.known_sizes(key)) is not None:
            return self._filled(tensors, known)
        fitted = [s.fit(t) for s, t in zip(self.interface.tensors, tensors, strict=True)]
        args = self._filled(fitted, {})
        sizes = {i: from_size(size, args) for i, size in self._sizes}
        args = self._filled(fitted, sizes)
        self.interface.check_sizes(fitted, args)
        if key is not None and all(a is b for a, b in zip(fitted, tensors, strict=True)):
            self._latest = (key, sizes)
        return args

    def known_sizes(self, key: list[Any] | None) -> dict[int, int] | None:
        """The sizes computed of such tensors, if the latest call that it took was of such."""
        latest = self._latest  # once: other threads call too
        return latest[1] if latest is not None and latest[0] == key else None

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
                name = self.interface.tensors[k].name
                raise CallMismatchError(
                    f"The argument {name} requires a gradient, and what was saved computes none "
                    "of it: call it under torch.no_grad(), detach the argument, or save the call "
                    "with training=True and such an argument."
                )

    # -- the graph ------------------------------------------------------------------------------

    def run(self, given: list[Any]) -> list[Any]:
        """Run the graph, and bring new values to where they belong."""
        run = self._run_graph or self._prepare()
        if isinstance(run, Step):
            return run(given)
        updated = [given[i] for i in self.saved.updates]
        results = list(run.boxed(given))
        first = len(results) - len(updated)
        if updated:
            with torch.no_grad():
                write_back(updated, results[first:])
        return results[:first]

    def _prepare(self) -> Executor | Step:
        """Build the sessions, if there are none."""
        with self._lock:
            if self._run_graph is None:
                self._run_graph = self._build()
            return self._run_graph

    def _build(self) -> Executor | Step:
        made = {
            kind: _build(graph, self._models.get(kind), self._options)
            for kind, graph in self.saved.graphs.items()
        }
        if self.plan is None:
            return made["model"]
        return Step(self.plan, made["model"], made["backward"])

    def forget_inherited(self) -> None:
        """In a forked child, leave the session of the parent alone: the next call builds one."""
        run = self._run_graph
        runs = (run.forward, run.backward) if isinstance(run, Step) else (run,)
        sessions = [r.session for r in runs if r is not None and r.session is not None]
        if not all(s.survives_fork() for s in sessions):
            self._run_graph = None


def group(calls: Sequence[LoadedCall]) -> list[list[LoadedCall]]:
    """The calls, those together whose arguments are taken apart in one way."""
    groups: list[list[LoadedCall]] = []
    for call in calls:
        for others in groups:
            if others[0].interface.parameters == call.interface.parameters:
                others.append(call)
                break
        else:
            groups.append([call])
    return groups


def choose(
    groups: Sequence[Sequence[LoadedCall]], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[LoadedCall, list[torch.Tensor], list[Any]]:
    """The first of some calls that takes arguments, their tensors, and what its graph takes.

    Raises :class:`CallMismatchError` when none does.
    """
    errors: list[CallMismatchError] = []
    for calls in groups:
        try:
            tensors = calls[0].interface.tensors_of(args, kwargs)
        except CallMismatchError as error:
            errors.append(error)
            continue
        key = _key_of(tensors)
        for call in _known_first(calls, key):
            try:
                return call, tensors, call.arguments(tensors, key)
            except CallMismatchError as error:  # noqa: PERF203 - the next one may take it
                errors.append(error)
    raise _refusal(errors)


def _known_first(calls: Sequence[LoadedCall], key: list[Any] | None) -> Iterator[LoadedCall]:
    known = next((call for call in calls if call.known_sizes(key) is not None), None)
    if known is not None:
        yield known
    yield from (call for call in calls if call is not known)


def _key_of(tensors: Sequence[torch.Tensor]) -> list[Any] | None:
    """What of tensors decides whether a graph takes them; None for what is resolved first."""
    if any(t.is_neg() or t.is_conj() for t in tensors):
        return None
    return [(t.shape, t.stride(), t.dtype, t.device, type(t)) for t in tensors]


def _refusal(errors: Sequence[CallMismatchError]) -> CallMismatchError:
    reasons = list(dict.fromkeys(str(error) for error in errors))
    if len(reasons) == 1:
        return CallMismatchError(reasons[0])
    brief = [reason.removesuffix(MORE_SIZES).rstrip() for reason in reasons[:SHOWN]]
    shown = [f"({i}) {reason}" for i, reason in enumerate(brief, 1)]
    if len(reasons) > SHOWN:
        shown.append(f"... and {len(reasons) - SHOWN} more.")
    if any(reason.endswith(MORE_SIZES) for reason in reasons):
        shown.append(MORE_SIZES)  # once
    return CallMismatchError(f"None of the graphs that were saved takes this: {' '.join(shown)}")


def _build(graph: SavedGraph, files: ModelFiles | None, options: OrtBackendOptions) -> Executor:
    """Build the session of a graph of a saved model."""
    session: Session | None = None
    if files is not None:
        model = files.read()
        settings = session_settings(options, model, graph.providers)
        session = create_session(
            model,
            providers=graph.providers,
            options=settings,
            keep=new_settings(options, model, graph.providers),
            beside=files.form,
        )
        files.keep()
    return Executor(
        session,
        graph.signature,
        name=graph.name,
        writes=graph.writes,
        preallocate=options.preallocate_output,
        pause_torch_threads=options.pause_torch_threads,
    )
