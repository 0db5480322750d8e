"""What the description of a saved model says, as records; its tensors, of files or modules."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from dort_rewriter.deployment.folder import ModelFiles, StoredTensor, file_name, map_tensors
from dort_rewriter.deployment.interface import Interface
from dort_rewriter.deployment.plain import expect, mapping, text, whole
from dort_rewriter.deployment.pytree_specs import leaves, rebuild, tensors_in
from dort_rewriter.deployment.serialization import check_signature, check_writes, read
from dort_rewriter.deployment.shared_parts import Insertion, Part, check_insertions
from dort_rewriter.deployment.steps import StepPlan
from dort_rewriter.errors import ExecutionError, OptionError
from dort_rewriter.options import OrtBackendOptions, from_mapping
from dort_rewriter.signature import GraphSignature, InputDim, Writes, places_in

SESSION_OPTIONS = (
    "arena",
    "intra_op_threads",
    "ort_optimization_level",
    "pause_torch_threads",
    "preallocate_output",
    "spinning",
)
"""The options that a session is built with each time."""

MOST_GRAPHS = 256
"""The graphs of a folder."""

_MOST_THREADS = 4_096


@dataclass(frozen=True, kw_only=True)
class SavedGraph:
    """A graph of a saved model, and how its session is built."""

    name: str
    signature: GraphSignature
    writes: Writes
    providers: tuple[tuple[str, dict[str, str]], ...]
    torch_kernels: bool
    placement: Mapping[str, Mapping[str, int]] | None = None
    """The nodes that each provider had by type when it was saved, as its session told."""
    insertions: tuple[Insertion, ...] = ()
    """The weights that its model has in common with others."""
    plan: StepPlan | None = None
    """How a graph of gradients belongs to the forward graph."""

    def __post_init__(self) -> None:
        """Refuse options that name libraries to load, or folders to write to."""
        for _, options in self.providers:
            for name, value in options.items():
                expect("/" not in value and "\\" not in value, f"{name} of a provider", value)


@dataclass(frozen=True, kw_only=True)
class SavedCall:
    """A call that was saved: its arguments, its graph (two of a training step), its result."""

    arguments: Interface
    graph: SavedGraph
    backward: SavedGraph | None
    updates: tuple[int, ...]
    """The arguments of the graph whose new values are its last results."""
    result: Any
    """The description of the result."""
    rebuild: Callable[[Mapping[str, list[Any]]], Any] = field(init=False)
    """Makes the result of a call of its parts."""

    def __post_init__(self) -> None:
        """Read the description of the result."""
        object.__setattr__(self, "rebuild", rebuild(self.result))

    @property
    def plan(self) -> StepPlan | None:
        """How its two graphs belong together, None where there is one."""
        return None if self.backward is None else self.backward.plan

    @property
    def graphs(self) -> dict[str, SavedGraph]:
        """Its graphs by their kind."""
        backward = {} if self.backward is None else {"backward": self.backward}
        return {"model": self.graph, **backward}


@dataclass(frozen=True, kw_only=True)
class Description:
    """What a folder says of the model in it."""

    made_by: Mapping[str, str]
    """The versions that it belongs to."""
    settings: Mapping[str, str | None]
    training: bool
    """The mode of the module."""
    weights: Literal["inside", "reference"]
    """Whether the tensors of the module are in the folder."""
    files: Mapping[str, Any]
    options: Mapping[str, Any]
    tensors: tuple[StoredTensor, ...]
    """Those that the calls share."""
    parts: tuple[Part, ...]
    """What their models share."""
    calls: tuple[SavedCall, ...]

    def session_options(self) -> OrtBackendOptions:
        """The options that sessions are built with."""
        return from_mapping(
            OrtBackendOptions, mapping(self.options, "list of options", SESSION_OPTIONS)
        )

    def models(
        self, folder: Path, place: int, *, holds_forms: bool = False
    ) -> dict[str, ModelFiles]:
        """The files of the models of a call by their kind; a graph may compute nothing."""
        return {
            kind: ModelFiles(
                folder,
                self.files,
                f"{kind} {place}",
                torch_kernels=graph.torch_kernels,
                insertions=graph.insertions,
                parts=self.parts,
                holds_forms=holds_forms,
            )
            for kind, graph in self.calls[place].graphs.items()
            if f"{kind} {place}" in self.files
        }


def read_whole(content: Mapping[str, Any]) -> Description:
    """A description, each part of it checked by itself and against the others.

    Raises :class:`ValueError`, or what Python raises, for one that is damaged; see
    :func:`damage_is_named`.
    """
    found: Description = read(Description, {k: v for k, v in content.items() if k != "format"})
    for tensor in found.tensors:
        in_file = found.weights == "inside" or tensor.kind == "constant"
        expect(in_file is (tensor.offset is not None), "place of a tensor", tensor.name)
    expect(0 < len(found.calls) <= MOST_GRAPHS, "number of graphs", len(found.calls))
    mapping(dict(found.settings), "list of settings", ("autocast", "default_dtype"))
    threads = found.session_options().intra_op_threads
    expect(threads is None or threads <= _MOST_THREADS, "number of threads", threads)
    _check_files(found.files, len(found.calls))
    for call in found.calls:
        _check_call(call, found.tensors, found.parts)
    return found


def _check_files(files: Mapping[str, Any], calls: int) -> None:
    kinds = [f"{kind} {i}" for i in range(calls) for kind in ("model", "backward")]
    known = {"parts", "tensors", *(f"{k}{of}" for k in kinds for of in ("", " data", " compiled"))}
    for kind, entry in files.items():
        text(kind, "kind of file", known)
        entry = mapping(entry, "file", ("file", "bytes", "digest"))
        file_name(entry["file"])
        whole(entry["bytes"], "size of a file")
        whole(entry["digest"], "digest")


def _check_call(call: SavedCall, stored: Sequence[StoredTensor], parts: Sequence[Part]) -> None:
    """Refuse a call of which a part names something that there is not."""
    for graph in call.graphs.values():
        check_signature(graph.signature)
        check_writes(graph.writes, graph.signature)
        check_insertions(graph.insertions, parts)
    signature, arguments, plan = call.graph.signature, call.arguments, call.plan
    _check_interface(arguments, signature)
    for i in call.updates:
        whole(i, "argument", limit=len(signature.inputs))
    made = len(signature.outputs) - len(call.updates)
    expect(call.graph.plan is None and (plan is None) is (call.backward is None), "plan", plan)
    if plan is not None:  # behind those of the call is what the backward graph needs
        _check_plan(call)
        made = plan.results
    expect(made >= 0, "list of results", made)
    limits = {"argument": len(arguments.tensors), "state": len(stored)}
    named = (p for p in arguments.inputs if p[0] in limits)
    for kind, place in (*named, *leaves(call.result)):
        limit = limits.get(kind, made if kind == "result" else None)
        if limit is not None and not 0 <= whole(place) < limit:
            raise ValueError(f"{kind} {place} is named, of {limit}")
    for slot, (kind, place) in zip(signature.inputs, arguments.inputs, strict=True):
        expected: Any = {"size": "int", "nothing": slot.kind}.get(kind, "tensor")
        expect(slot.kind == expected and (kind != "nothing" or slot.name is None), "source", kind)
        if kind in limits:
            tensor = (arguments.tensors if kind == "argument" else stored)[whole(place)]
            fits = tensor.dtype is slot.dtype and len(tensor.shape) == len(slot.shape)
            expect(fits, f"argument of {slot.dtype} and {len(slot.shape)} dimensions", tensor)


def _check_interface(found: Interface, signature: GraphSignature) -> None:
    expect(len(found.inputs) == len(signature.inputs), "list of inputs", len(found.inputs))
    sizes: list[Any] = [size for kind, size in found.inputs if kind == "size"]
    sizes += [size for r in found.relations for size in (r.left, r.right)]
    for t in found.tensors:
        expect(t.strides is None or len(t.strides) == len(t.shape), "list of strides", t.strides)
        sizes += t.strides or ()
    for part in places_in(sizes):
        if not isinstance(part, InputDim):
            raise ValueError(f"{part} is no size of a tensor")
        slot = signature.inputs[whole(part.index, "place", limit=len(signature.inputs))]
        expect(slot.kind == "tensor" and part.dim < len(slot.shape), "size", part)
    for place in (*found.apart, *itertools.chain(*found.same)):
        whole(place, "tensor of a call", limit=len(found.tensors))
    named = [t for p in found.parameters for t in tensors_in(p.tree)]
    expect(named == list(range(len(found.tensors))), "list of the tensors of a call", named)
    for p in found.parameters:
        constant = p.default is None or not list(tensors_in(p.default))
        expect(constant, "default", p.default)
    known = [p.name for p in found.parameters]
    expect(len(known) == len(set(known)), "call", known)


def _check_plan(call: SavedCall) -> None:
    """Refuse two graphs that do not belong together."""
    plan, forward, backward = call.plan, call.graph.signature, call.backward
    assert plan is not None
    assert backward is not None
    given, first = len(forward.inputs), len(plan.updates)
    results, needed = (
        forward.outputs[first:][: plan.results],
        forward.outputs[first + plan.results :],
    )
    made = [i for i, slot in enumerate(backward.signature.outputs) if slot.kind == "tensor"]
    fits = (
        len(results) == plan.results
        and plan.numbers <= len(needed)
        and all(_is_ascending(i, given) for i in (plan.updates, plan.wanted))
        and _is_ascending(plan.derived, plan.results)
        and len(plan.orders) == len(plan.derived)
        and all(
            sorted(order) == list(range(len(results[i].shape))) and results[i].kind == "tensor"
            for i, order in zip(plan.derived, plan.orders, strict=True)
        )
        and len(backward.signature.inputs) == len(needed) + len(plan.derived)
        and len(backward.signature.outputs) == given
        and set(made) <= set(plan.wanted)
    )
    if not fits:
        raise ValueError("its two graphs do not belong together")


def _is_ascending(places: Sequence[int], limit: int) -> bool:
    """Whether these are places below a limit, each once and in order."""
    return sorted({*places}) == [*places] and all(0 <= i < limit for i in places)


DAMAGE = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError, OSError, RuntimeError),
    *(SyntaxError, TypeError, ValueError),
)
"""What unexpected values lead to: torch raises RuntimeError, and so does Python
for what is nested too deep."""


@contextlib.contextmanager
def damage_is_named(folder: Path) -> Iterator[None]:
    """Raise :class:`ExecutionError` for whatever a damaged model in a folder leads to."""
    try:
        yield
    except ExecutionError:
        raise
    except DAMAGE as error:
        raise ExecutionError(
            f"{folder} holds a damaged model: save it again ({error})."
        ) from error


def tensors_by_name(saved: Description, model: Any, folder: Path) -> dict[str, Any]:
    """The tensors of a module by name, where a saved model refers to them."""
    if saved.weights == "inside":
        if model is not None:
            raise OptionError(f"{folder} has its own weights: call load(path) without a model.")
        return {}
    if model is None:
        raise OptionError(
            f'{folder} was saved with weights="reference": give the module, load(path, model).'
        )
    if not isinstance(model, torch.nn.Module):
        return dict(model)
    model = getattr(model, "_orig_mod", model)
    if model.training != saved.training:
        mode = "train()" if saved.training else "eval()"
        raise ExecutionError(f"The model was saved in another mode: call model.{mode} first.")
    named = dict(model.named_parameters(remove_duplicate=False))
    return {**named, **dict(model.named_buffers(remove_duplicate=False))}


def state_of(
    folder: Path, saved: Description, named: Mapping[str, Any], *, check: bool
) -> list[torch.Tensor]:
    """The tensors that a graph takes besides its arguments: out of the file, or of a module."""
    stored = saved.tensors
    inside = [t for t in stored if t.offset is not None]
    mapped: list[torch.Tensor] = []
    if any(t.bytes for t in inside):
        mapped = map_tensors(folder, saved.files["tensors"], inside, check=check)
    elif inside:
        mapped = [torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in inside]
    from_file = iter(mapped)
    return [next(from_file) if t.offset is not None else _referred(t, named) for t in stored]


def _referred(wanted: StoredTensor, named: Mapping[str, Any]) -> torch.Tensor:
    tensor = named.get(wanted.name)
    if not isinstance(tensor, torch.Tensor):
        raise ExecutionError(f"The model has no {wanted.kind} {wanted.name!r}, which was saved.")
    given = (tensor.dtype, tuple(tensor.shape), tensor.device)
    expected = (wanted.dtype, wanted.shape, wanted.device)
    if given != expected:
        raise ExecutionError(
            f"{wanted.name!r} of the model is {_spell_tensor(*given)}; it was "
            f"{_spell_tensor(*expected)} when it was saved."
        )
    return tensor


def _spell_tensor(dtype: torch.dtype, shape: tuple[int, ...], device: torch.device) -> str:
    return f"{str(dtype).removeprefix('torch.')} of {shape} on {device}"
