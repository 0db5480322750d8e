"""Save a compiled model: one graph with its model, its conditions and its tensors, in a folder."""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from dort_rewriter.backends.seen_calls import latest_call, map_values
from dort_rewriter.compiler.written_arguments import find_writes
from dort_rewriter.deployment.captured import Captured, copy_of
from dort_rewriter.deployment.capturing import capture
from dort_rewriter.deployment.compiled import Compiled, take_apart
from dort_rewriter.deployment.describing import Described, describe_call
from dort_rewriter.deployment.examples import Maker, aliases_of, mark_as_seen
from dort_rewriter.deployment.folder import (
    file_entry,
    made_by,
    write_description,
    write_tensors,
)
from dort_rewriter.deployment.leftovers import ASIDE, saving_to
from dort_rewriter.deployment.loading import SavedModel, settings_now
from dort_rewriter.deployment.notation import spell_signature, spell_writes
from dort_rewriter.deployment.reading import SESSION_OPTIONS, read_whole
from dort_rewriter.errors import (
    CaptureError,
    DivergenceError,
    ExecutionError,
    ExportError,
    OptionError,
)
from dort_rewriter.options import OrtBackendOptions
from dort_rewriter.plan.recipe import BuiltBlock, Providers
from dort_rewriter.runtime.low_bits import require_low_bit_products
from dort_rewriter.runtime.model_files import write_model
from dort_rewriter.runtime.stored_model import uses_torch_kernels

__all__ = ["save"]


def save(
    compiled: Callable[..., Any],
    path: str | os.PathLike[str],
    *args: Any,
    weights: Literal["inside", "reference"] = "inside",
    training: bool = False,
    **kwargs: Any,
) -> None:
    """Save a model compiled by ``torch.compile(model, backend="onnxrt")``, to load it elsewhere.

    What is saved is the graph of one call in inference: of the call with these arguments, or of
    the last call that was compiled, when there are none. Sizes that were compiled for any number
    stay so. :func:`load` makes it callable in another process, without tracing; its numbers are
    those of the compiled model: bit for bit, but within rounding where MKL computes in that one.
    Saving runs the model, on its parameters and buffers as they are, and leaves them so.

    With ``training=True`` it is the graph of a training step, and that of its gradients: what is
    loaded is called and derived as the compiled model is.

    ``path`` is a folder, made if there is none; a model saved there before is replaced. With
    ``weights="reference"`` the tensors of the module stay out of it, and are given to ``load``.

    Raises :class:`CaptureError`, which says why and what to do, for what is not one graph that
    ONNX Runtime runs as a whole.
    """
    if weights not in ("inside", "reference"):
        raise OptionError(f"weights is 'inside' or 'reference', not {weights!r}.")
    found = take_apart(compiled)
    _check_options(found.options, weights)
    folder = Path(path).absolute()
    given, named = _example(found, args, kwargs, training=training)
    captured = _captured(found, given, named, training=training)
    described = describe_call(captured, found.target, found.module, given, named)
    try:
        folder.mkdir(exist_ok=True)
        with saving_to(folder), tempfile.TemporaryDirectory(prefix=ASIDE, dir=folder) as aside:
            files = _write(captured, described, found, Path(aside), inside=weights == "inside")
            _compare(captured, described, files, Path(aside), given, named)
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
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments to save a graph for, the sizes marked that may vary."""
    seen = latest_call(found.target)
    if not args and not kwargs:
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


def _captured(
    found: Compiled, args: Sequence[Any], kwargs: Mapping[str, Any], *, training: bool
) -> Captured:
    try:
        return capture(found, args, kwargs, training=training)
    except (ExportError, ExecutionError) as error:
        raise CaptureError(
            f"It does not run in ONNX Runtime as a whole, and cannot be saved: {error}"
        ) from error


# -- the folder ---------------------------------------------------------------------------------


def _write(
    captured: Captured, described: Described, found: Compiled, folder: Path, *, inside: bool
) -> dict[str, Any]:
    """Write the files of a model to a folder; return what describes them."""
    label = secrets.token_hex(6)
    files: dict[str, Any] = {}
    graph = _write_graph("model", captured.block, captured.providers, folder, label, files)
    backward = None
    if (found_backward := captured.backward) is not None:
        block, providers = found_backward.block, found_backward.providers
        backward = _write_graph("backward", block, providers, folder, label, files)
        backward["plan"] = dataclasses.asdict(found_backward.plan)
    stored = described.stored
    kept = [i for i, t in enumerate(stored) if inside or t.kind == "constant"]
    path = folder / f"tensors-{label}.bin"
    places = write_tensors(
        [described.state[i] for i in kept], [stored[i].order for i in kept], path
    )
    files["tensors"] = file_entry(path)
    for i, place in zip(kept, places, strict=True):
        stored[i] = dataclasses.replace(stored[i], offset=place)
    return {
        "made_by": made_by(),
        "settings": settings_now(),
        "training": bool(getattr(found.module, "training", False)),
        "weights": "inside" if inside else "reference",
        "files": files,
        "tensors": [t.spell() for t in stored],
        "arguments": described.arguments,
        "result": described.result,
        "graph": graph,
        "backward": backward,
        "updates": list(captured.updates),
        "options": {name: getattr(found.options, name) for name in SESSION_OPTIONS},
    }


def _write_graph(
    kind: str,
    block: BuiltBlock,
    providers: Providers,
    folder: Path,
    label: str,
    files: dict[str, Any],
) -> dict[str, Any]:
    """Write the model of a graph to a folder, add its files to others; describe the graph."""
    if block.session is not None:
        path = folder / f"{kind}-{label}.onnx"
        write_model(block.model, path)
        files[kind] = file_entry(path)
        if (data := path.with_name(f"{path.name}.data")).exists():
            files[f"{kind} data"] = file_entry(data)
    return {
        "signature": spell_signature(block.signature),
        "torch_kernels": block.session is not None and uses_torch_kernels(block.model),
        "writes": spell_writes(find_writes(block)),
        "providers": [[name, dict(options)] for name, options in providers],
        "name": f"ONNX Runtime: saved model of {len(block.exported.model.graph)} nodes",
    }


def _compare(
    captured: Captured,
    described: Described,
    content: Mapping[str, Any],
    folder: Path,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> None:
    """Call what was written, and compare it with what the graph gave: bit for bit."""
    named = {}
    for stored, tensor in zip(described.stored, described.state, strict=True):
        # The state of the caller stays what it is.
        named[stored.name] = copy_of(tensor) if stored.written else tensor
    written = read_whole(json.loads(json.dumps(content)))
    saved = SavedModel(folder, written, named, check=True)
    copies = {id(captured.args[i]): copy_of(captured.args[i]) for i in captured.updates}

    def replaced(tensor: torch.Tensor) -> torch.Tensor:
        return copies.get(id(tensor), tensor)

    given = [map_values(a, replaced) for a in args]
    by_name = {name: map_values(value, replaced) for name, value in kwargs.items()}
    results, gradients = saved.compute(given, by_name)
    for i, (mine, theirs) in enumerate(zip(results, captured.results, strict=False)):
        if id(theirs) in copies:  # an argument, which the run left as it was
            continue
        if not _is_same(mine, theirs):
            raise _divergence("Result", i)
    expected = [] if captured.backward is None else captured.backward.gradients
    for i, (mine, theirs) in enumerate(zip(gradients, expected, strict=True)):
        if not _is_same(mine, theirs):
            raise _divergence("Gradient", i)


def _divergence(what: str, place: int) -> DivergenceError:
    return DivergenceError(
        f"{what} {place} of the saved model is not that of the compiled one: nothing was saved. "
        "This is a defect of dort_rewriter.",
        name=str(place),
    )


def _is_same(a: Any, b: Any) -> bool:
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return type(a) is type(b) and bool(a == b)
    if a.dtype is not b.dtype or a.shape != b.shape:
        return False
    return bool(torch.all((a == b) | ((a != a) & (b != b))))
