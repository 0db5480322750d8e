"""Save a compiled model: graphs with their models, their conditions and tensors, in a folder.

What saves that were killed have left in a folder the next one removes, if no other runs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import re
import secrets
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from dort_rewriter.backends.layers import compiled_layer
from dort_rewriter.backends.seen_calls import latest_call
from dort_rewriter.compiler.differences import Tolerance, difference
from dort_rewriter.deployment.capturing import copy_of
from dort_rewriter.deployment.compiled import Compiled, take_apart
from dort_rewriter.deployment.examples import (
    Call,
    Maker,
    aliases_of,
    calls_of,
    map_call,
    mark_as_seen,
)
from dort_rewriter.deployment.folder import (
    DESCRIPTION,
    file_entry,
    files_of,
    made_by,
    write_description,
    write_tensors,
)
from dort_rewriter.deployment.graphs import Graphs, MadeGraph
from dort_rewriter.deployment.loading import SavedModel, forms_of, settings_now
from dort_rewriter.deployment.reading import SESSION_OPTIONS, Description, read_whole
from dort_rewriter.deployment.serialization import spell
from dort_rewriter.deployment.shared_parts import Insertion, PartsWriter
from dort_rewriter.errors import (
    CaptureError,
    DivergenceError,
    ExportError,
    OptionError,
)
from dort_rewriter.options import OrtBackendOptions
from dort_rewriter.plan.recipe import BuiltBlock
from dort_rewriter.runtime.kernel_query import require_low_bit_products
from dort_rewriter.runtime.model_files import weights_in, write_model

if sys.platform != "win32":
    import fcntl

logger = logging.getLogger(__name__)

ASIDE = ".dort-save-"
"""How the names of folders begin that a save writes to."""

_OURS = re.compile(r"(model|backward|tensors|parts|compiled)-[0-9a-f]{12}\.(onnx|onnx\.data|bin)")


@contextlib.contextmanager
def saving_to(folder: Path) -> Iterator[None]:
    """Tell other processes that this one saves to a folder; remove what none is going to name.

    A lock on the folder ends with its process. Where there are no locks nothing is removed.
    """
    if sys.platform == "win32":  # where a folder cannot be opened
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # another process saves, or there are no locks
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove_leftovers(folder)
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_SH)
        yield
    finally:
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_UN)  # a process forked meanwhile has the handle too
        os.close(handle)


def _remove_leftovers(folder: Path) -> None:
    named = files_of(folder) if (folder / DESCRIPTION).exists() else None
    for path in list(folder.iterdir()):
        try:
            if path.name.startswith(ASIDE) and path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif named and path.name not in named and _OURS.fullmatch(path.name):
                path.unlink()  # it was moved, and its description was not
        except OSError as error:  # noqa: PERF203 - the others go
            logger.info("%s, which a save has left, stays: %s", path, error)


def save(
    compiled: Callable[..., Any],
    path: str | os.PathLike[str],
    *args: Any,
    calls: Sequence[Sequence[Any] | Mapping[str, Any]] | None = None,
    weights: Literal["inside", "reference"] = "inside",
    training: bool = False,
    **kwargs: Any,
) -> None:
    """Save a model compiled by ``torch.compile(model, backend="onnxrt")``, to load it elsewhere.

    What is saved is the graph of one call in inference: of the call with these arguments, or of
    the last call that was compiled, when there are none; with ``calls``, the graphs of several,
    which share their weights. Its entries are those of :func:`warm_up`: arguments in order or by
    name, tuples of whole numbers for tensors of that shape. Sizes that differ between them may
    vary, and what an earlier graph takes needs none of its own.

    Sizes that were compiled for any number may vary from two on, as torch has it, or within bounds
    that it found. Graphs for sizes of one, and beyond a bound, are saved beside, where the model
    has them: of up to two sizes for each combination; of more, and with ``freeze``, for the first
    one (the batch).

    :func:`load` makes it callable in another process, without tracing; its numbers are
    those of the compiled model: bit for bit, but within rounding where MKL computes in that one.
    Saving runs the model, on its parameters and buffers as they are, and leaves them so.

    With ``training=True`` it is the graph of a training step, and that of its gradients: what is
    loaded is called and derived as the compiled model is.

    ``path`` is a folder, made if there is none; a model saved there before is replaced. With
    ``weights="reference"`` the tensors of the module stay out of it, and are given to ``load``.

    Args:
        compiled: what ``torch.compile`` returned.
        path: the folder.
        args: the arguments of the call that is saved, in order.
        calls: several calls, in place of arguments.
        weights: ``"inside"`` the folder, or by ``"reference"``.
        training: save a training step and its gradients.
        kwargs: the arguments of the call that is saved, by name.

    Raises:
        CaptureError: the model is not one graph that ONNX Runtime runs as a whole; the message
            says why and what to do.
    """
    if weights not in ("inside", "reference"):
        raise OptionError(f"weights is 'inside' or 'reference', not {weights!r}.")
    found = take_apart(compiled)
    _check_options(found.options, weights)
    folder = Path(path).absolute()
    graphs = Graphs(found, training=training)
    if calls is None:
        graphs.add(_example(found, args, kwargs, training=training))
    else:
        if args or kwargs:
            raise OptionError("Give the arguments of one call, or calls=[...], not both.")
        for call in _entries(found, calls, training=training):
            graphs.add(call)
    graphs.add_calls_beside()
    try:
        folder.mkdir(exist_ok=True)
        with saving_to(folder), tempfile.TemporaryDirectory(prefix=ASIDE, dir=folder) as aside:
            files = _write(graphs, found, Path(aside), weights)
            _compare(graphs, files, Path(aside))
            write_description(files, folder, Path(aside))
    except OSError as error:
        raise ExportError(f"Cannot write {folder}: {error}.") from error


def _check_options(options: OrtBackendOptions, weights: str) -> None:
    if options.freeze and weights == "reference":
        raise OptionError(
            "freeze=True puts the weights into the model: save it with weights='inside', or "
            "compile it without freeze."
        )
    if options.ort_session_options is not None:
        raise CaptureError(
            "ort_session_options cannot be written down: compile with the options of this package "
            "(intra_op_threads, ort_optimization_level, spinning, arena) in their place."
        )
    if options.autotune:
        raise CaptureError(
            "autotune chooses among several graphs while they run: compile without it to save one."
        )
    if not options.use_aot_autograd:
        raise CaptureError(
            "use_aot_autograd=False compiles graphs, and no call that can be saved."
        )
    if options.weights is not None:
        require_low_bit_products(options.weights)


# -- the call -----------------------------------------------------------------------------------


def _example(
    found: Compiled, args: Sequence[Any], kwargs: Mapping[str, Any], *, training: bool
) -> Call:
    """The arguments to save a graph for, the sizes marked that may vary."""
    seen = latest_call(found.target)
    if not args and not kwargs:
        if seen is None and compiled_layer(found.target) is not None:
            raise CaptureError(
                "compile_layers saw calls of its layers, and none of the model: give example "
                "arguments, save(model, path, *arguments). It is saved as a whole."
            )
        if seen is None:
            raise CaptureError(
                "It was not compiled yet, or Dynamo captured nothing of it: call it once, or "
                "give example arguments, save(compiled, path, *arguments)."
            )
        return Maker(gradients=training).call(seen)
    given, named = aliases_of(args, kwargs, gradients=training)
    if seen is not None:
        mark_as_seen(seen, given, named)
    return given, named


def _entries(
    found: Compiled,
    entries: Sequence[Sequence[Any] | Mapping[str, Any]],
    *,
    training: bool,
) -> list[Call]:
    """The calls to save graphs for, the sizes marked that may vary."""
    if not entries:
        raise OptionError("calls is a list of calls: [(tensor,), ...] or [((1, 16),), ...].")
    made = calls_of(found, entries, gradients=training)
    if (seen := latest_call(found.target)) is not None:
        for args, kwargs in made:
            mark_as_seen(seen, args, kwargs)
    return made


# -- the folder ---------------------------------------------------------------------------------


def _write(
    graphs: Graphs, compiled: Compiled, folder: Path, weights: Literal["inside", "reference"]
) -> dict[str, Any]:
    """Write the files of a model to a folder; return what describes them."""
    files: dict[str, Any] = {}
    calls = []
    parts = PartsWriter(folder / f"parts-{secrets.token_hex(6)}.bin")
    several = len(graphs.made) > 1
    for i, graph in enumerate(graphs.made):
        label, made = secrets.token_hex(6), dict(graph.saved.graphs)
        for kind, block in graph.blocks.items():
            if block.session is None:
                continue
            path = folder / f"{kind}-{label}.onnx"
            found = _write_model(f"{kind} {i}", block, path, files, parts if several else None)
            made[kind] = dataclasses.replace(made[kind], insertions=tuple(found))
        backward = made.get("backward")
        calls.append(dataclasses.replace(graph.saved, graph=made["model"], backward=backward))
    if parts.parts:
        files["parts"] = file_entry(parts.path)
    state = graphs.state
    stored = list(state.stored)
    kept = [i for i, t in enumerate(stored) if weights == "inside" or t.kind == "constant"]
    path = folder / f"tensors-{secrets.token_hex(6)}.bin"
    tensors, orders = [state.tensors[i] for i in kept], [stored[i].order for i in kept]
    places = write_tensors(tensors, orders, path)
    files["tensors"] = file_entry(path)
    for i, place in zip(kept, places, strict=True):
        stored[i] = dataclasses.replace(stored[i], offset=place)
    description = Description(
        made_by=made_by(),
        settings=settings_now(),
        training=bool(getattr(compiled.module, "training", False)),
        weights=weights,
        files=files,
        options={name: getattr(compiled.options, name) for name in SESSION_OPTIONS},
        tensors=tuple(stored),
        parts=tuple(parts.parts),
        calls=tuple(calls),
    )
    content: dict[str, Any] = spell(description)
    return content


def _write_model(
    kind: str, block: BuiltBlock, path: Path, files: dict[str, Any], parts: PartsWriter | None
) -> list[Insertion]:
    """Write the model of a graph, and add its files to others; what of it is written apart."""
    write_model(block.model, path)
    insertions: list[Insertion] = []
    if (data := path.with_name(f"{path.name}.data")).exists():
        files[f"{kind} data"] = file_entry(data)
    elif parts is not None:
        own, insertions = parts.take(path.read_bytes(), weights_in(block.model))
        path.write_bytes(own)
    files[kind] = file_entry(path)
    return insertions


def _compare(graphs: Graphs, content: Mapping[str, Any], folder: Path) -> None:
    """Call what was written, and compare it with what the graphs gave: bit for bit.

    What providers compile for that is written too, and added to the files of the description.
    """
    state = graphs.state
    named = {}
    for stored, tensor in zip(state.stored, state.tensors, strict=True):
        # The state of the caller stays what it is.
        named[stored.name] = copy_of(tensor) if stored.written else tensor
    written = read_whole(json.loads(json.dumps(content)))
    saved = SavedModel(folder, written, named, check=True, holds_forms=True)
    for place, graph in enumerate(graphs.made):
        with torch.no_grad():  # what the graph before has written to
            for stored, tensor in zip(state.stored, state.tensors, strict=True):
                if stored.written:
                    saved.state[stored.name].copy_(tensor)
        _compare_call(place, graph, saved)
    for name, form in forms_of(saved):
        path = folder / f"compiled-{secrets.token_hex(6)}.bin"
        path.write_bytes(form)
        content["files"][name] = file_entry(path)


def _compare_call(place: int, graph: MadeGraph, saved: SavedModel) -> None:
    captured = graph.captured
    copies = {id(captured.args[i]): copy_of(captured.args[i]) for i in captured.updates}
    given, by_name = map_call(*graph.call, lambda t: copies.get(id(t), t))
    results, gradients = saved.compute(place, given, by_name)
    backward = captured.backward
    for what, got, expected in (
        ("Result", results, captured.results),
        ("Gradient", gradients, [] if backward is None else backward.gradients),
    ):
        for i, (mine, theirs) in enumerate(zip(got, expected, strict=what == "Gradient")):
            if id(theirs) in copies:  # an argument, which the run left as it was
                continue
            if found := difference(mine, theirs, Tolerance()):
                raise DivergenceError(
                    f"{what} {i} of the saved model is not that of the compiled one: nothing was "
                    f"saved. This is a defect of dort_rewriter. ({found.text})",
                    name=str(i),
                )
