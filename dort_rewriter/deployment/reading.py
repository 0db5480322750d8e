"""What the description of a saved model says, as records; its tensors, of files or modules."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dort_rewriter.deployment.folder import StoredTensor, file_name, map_tensors
from dort_rewriter.deployment.interface import Interface, Parameter, Relation, TensorSpec
from dort_rewriter.deployment.plain import expect, flag, items, mapping, text, whole
from dort_rewriter.deployment.pytree_specs import leaves, rebuild, tensors_in
from dort_rewriter.deployment.serialization import (
    read_dtype,
    read_signature,
    read_size,
    read_writes,
)
from dort_rewriter.deployment.shared_parts import (
    Insertion,
    Part,
    read_insertions,
    read_part,
)
from dort_rewriter.deployment.steps import StepPlan
from dort_rewriter.errors import ExecutionError, OptionError
from dort_rewriter.options import OrtBackendOptions, from_mapping
from dort_rewriter.signature import GraphSignature, InputDim, SizeExpression, Writes

__all__ = [
    "DAMAGE",
    "MOST_GRAPHS",
    "SESSION_OPTIONS",
    "Description",
    "SavedCall",
    "SavedGraph",
    "damage_is_named",
    "read_call",
    "read_whole",
    "state_of",
    "tensors_by_name",
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

MOST_GRAPHS = 256
"""The graphs of a folder."""

_CONTENT = (
    *("calls", "files", "made_by", "options", "parts", "settings", "tensors", "training"),
    "weights",
)
_CALL = ("arguments", "backward", "graph", "result", "updates")
_GRAPH = ("insertions", "name", "providers", "signature", "torch_kernels", "writes")
_MOST_THREADS = 4_096


@dataclass(frozen=True, kw_only=True)
class SavedGraph:
    """A graph of a saved model, and how its session is built."""

    name: str
    signature: GraphSignature
    writes: Writes
    providers: tuple[tuple[str, dict[str, str]], ...]
    torch_kernels: bool
    insertions: tuple[Insertion, ...]
    """The weights that its model has in common with others."""


@dataclass(frozen=True, kw_only=True)
class SavedCall:
    """A call that was saved: its arguments, its graph (two of a training step), its result."""

    interface: Interface
    forward: SavedGraph
    backward: SavedGraph | None
    plan: StepPlan | None
    updates: tuple[int, ...]
    rebuild: Callable[[Mapping[str, list[Any]]], Any]
    """Makes the result of a call of its parts."""

    @property
    def graphs(self) -> dict[str, SavedGraph]:
        """Its graphs by their kind."""
        backward = {} if self.backward is None else {"backward": self.backward}
        return {"model": self.forward, **backward}


@dataclass(frozen=True, kw_only=True)
class Description:
    """What a description says, read as a whole."""

    settings: Mapping[str, Any]
    training: bool
    """The mode of the module."""
    inside: bool
    """Whether the tensors of the module are in the folder."""
    files: Mapping[str, Any]
    options: OrtBackendOptions
    stored: tuple[StoredTensor, ...]
    """The tensors that the calls share."""
    parts: tuple[Part, ...]
    """What their models share."""
    calls: tuple[SavedCall, ...]


def read_whole(content: Mapping[str, Any]) -> Description:
    """A description, each part of it checked by itself and against the others.

    Raises :class:`ValueError`, or what Python raises, for one that is damaged; see
    :func:`damage_is_named`.
    """
    mapping({k: v for k, v in content.items() if k != "format"}, "description", _CONTENT)
    for package, version in mapping(content["made_by"], "list of versions").items():
        text(version, f"version of {package}")
    inside = text(content["weights"], "place of weights", ("inside", "reference")) == "inside"
    stored = tuple(map(StoredTensor.read, items(content["tensors"])))
    for tensor in stored:
        in_file = inside or tensor.kind == "constant"
        expect(in_file is (tensor.offset is not None), "place of a tensor", tensor.name)
    parts = tuple(map(read_part, items(content["parts"])))
    calls = items(content["calls"])
    expect(0 < len(calls) <= MOST_GRAPHS, "number of graphs", len(calls))
    return Description(
        settings=_settings(content["settings"]),
        training=flag(content["training"], "mode of a module"),
        inside=inside,
        files=_files(content["files"], len(calls)),
        options=_options(content["options"]),
        stored=stored,
        parts=parts,
        calls=tuple(read_call(call, stored, parts) for call in calls),
    )


def read_call(data: Any, stored: Sequence[StoredTensor], parts: Sequence[Part] = ()) -> SavedCall:
    """A call out of a description, with the tensors that there are besides its arguments, and the
    parts of models.

    Raises :class:`ValueError` when it is damaged.
    """
    data = mapping(data, "call", _CALL)
    forward, backward = _graph(data["graph"], (), parts), data["backward"]
    inputs = len(forward.signature.inputs)
    found = SavedCall(
        interface=read_interface(data["arguments"], forward.signature),
        forward=forward,
        backward=None if backward is None else _graph(backward, ("plan",), parts),
        plan=read_plan(backward, forward.signature),
        updates=tuple(whole(i, "argument", limit=inputs) for i in items(data["updates"])),
        rebuild=rebuild(data["result"]),
    )
    _check_places(found, stored, leaves(data["result"]))
    return found


def _graph(data: Any, more: tuple[str, ...], parts: Sequence[Part]) -> SavedGraph:
    data = mapping(data, "graph", (*_GRAPH, *more))
    signature = read_signature(data["signature"])
    providers = []
    for provider in items(data["providers"]):
        name, given = items(provider, "provider", 2)
        options = mapping(given, "list of options of a provider").items()
        providers.append((text(name), {k: _option(k, v) for k, v in options}))
    return SavedGraph(
        name=text(data["name"], "name"),
        signature=signature,
        writes=read_writes(data["writes"], signature),
        providers=tuple(providers),
        torch_kernels=flag(data["torch_kernels"]),
        insertions=read_insertions(data["insertions"], parts),
    )


def _option(name: str, value: Any) -> str:
    """An option of a provider: some of them name libraries to load, and folders to write to."""
    found = text(value if isinstance(value, str) else str(value))
    expect("/" not in found and "\\" not in found, f"{name} of a provider", found)
    return found


def _settings(data: Any) -> dict[str, Any]:
    data = mapping(data, "list of settings", ("autocast", "default_dtype"))
    autocast = data["autocast"]
    return {
        "autocast": autocast if autocast is None else text(autocast),
        "default_dtype": text(data["default_dtype"]),
    }


def _files(data: Any, calls: int) -> dict[str, Any]:
    kinds = [f"{kind} {i}" for i in range(calls) for kind in ("model", "backward")]
    known = {"parts", "tensors", *kinds, *(f"{kind} data" for kind in kinds)}
    data = mapping(data, "list of files")
    for kind, entry in data.items():
        text(kind, "kind of file", known)
        entry = mapping(entry, "file", ("file", "bytes", "digest"))
        file_name(entry["file"])
        whole(entry["bytes"], "size of a file")
        whole(entry["digest"], "digest")
    return data


def _options(data: Any) -> OrtBackendOptions:
    options = from_mapping(OrtBackendOptions, mapping(data, "list of options", SESSION_OPTIONS))
    threads = options.intra_op_threads
    expect(threads is None or threads <= _MOST_THREADS, "number of threads", threads)
    return options


def read_interface(data: Any, signature: GraphSignature) -> Interface:
    """The way to call a graph, out of a description; :class:`ValueError` when there is none."""
    keys = ("apart", "inputs", "parameters", "relations", "same", "tensors", "trees")
    data = mapping(data, "list of arguments", keys)
    inputs = len(signature.inputs)

    def size(value: Any) -> Any:
        found = read_size(value, inputs)
        for part in _parts_of(found):
            if isinstance(part, InputDim):
                slot = signature.inputs[part.index]
                expect(slot.kind == "tensor" and part.dim < len(slot.shape), "size", value)
            else:
                expect(type(part) is int, "size of a tensor", value)
        return found

    tensors = []
    for t in items(data["tensors"]):
        t = mapping(t, "tensor", [f.name for f in dataclasses.fields(TensorSpec)])
        shape, strides = items(t["shape"]), t["strides"]
        if strides is not None:
            strides = tuple(map(size, items(strides, count=len(shape))))
        spec = TensorSpec(
            name=text(t["name"], "name"),
            dtype=read_dtype(t["dtype"]),
            device=torch.device(text(t["device"], "device")),
            shape=tuple(None if d is None else whole(d, "size") for d in shape),
            dense=flag(t["dense"]),
            strides=strides,
            shared=flag(t["shared"]),
        )
        tensors.append(spec)

    def place(value: Any) -> int:
        return whole(value, "tensor of a call", limit=len(tensors))

    def relation(value: Any) -> Relation:
        op, left, right = items(value, count=3)
        return Relation(text(op), size(left), size(right))

    found = Interface(
        parameters=tuple(map(_parameter, items(data["parameters"]))),
        trees={text(name): tree for name, tree in map(items, items(data["trees"]))},
        tensors=tuple(tensors),
        inputs=tuple(
            (text(k, "source", _SOURCES), size(v) if k == "size" else whole(v, "place"))
            for k, v in map(items, items(data["inputs"], count=inputs))
        ),
        relations=tuple(map(relation, items(data["relations"]))),
        same=tuple((place(a), place(b)) for a, b in map(items, items(data["same"]))),
        apart=tuple(map(place, items(data["apart"]))),
    )
    named = [t for tree in found.trees.values() for t in tensors_in(tree)]
    expect(named == list(range(len(tensors))), "list of the tensors of a call", named)
    known = {p.name for p in found.parameters}
    expect(set(found.trees) == known and len(known) == len(found.parameters), "call", known)
    return found


def _parts_of(size: Any) -> Iterator[Any]:
    if isinstance(size, SizeExpression):
        for operand in size.args:
            yield from _parts_of(operand)
    else:
        yield size


_SOURCES = ("argument", "state", "size", "nothing")
_PARAMETERS = ("positional", "any", "named", "more", "more named")


def _parameter(data: Any) -> Parameter:
    name, kind, default = items(data, "parameter", 3)
    if default is not None:
        expect(not list(tensors_in(default)), "default", default)
    return Parameter(text(name), text(kind, "kind of parameter", _PARAMETERS), default)


def read_plan(backward: Any, forward: GraphSignature) -> StepPlan | None:
    """How the graph of the gradients belongs to a forward graph, None where there is none.

    Raises :class:`ValueError` when it does not.
    """
    if backward is None:
        return None
    data = mapping(backward["plan"], "plan", [f.name for f in dataclasses.fields(StepPlan)])
    signature = read_signature(backward["signature"])
    given = len(forward.inputs)

    def places(name: str, limit: int) -> tuple[int, ...]:
        return tuple(whole(i, name, limit=limit) for i in items(data[name]))

    results = whole(data["results"])
    plan = StepPlan(
        updates=places("updates", given),
        results=results,
        numbers=whole(data["numbers"]),
        derived=places("derived", results),
        orders=tuple(tuple(map(whole, items(order))) for order in items(data["orders"])),
        wanted=places("wanted", given),
    )
    needed = len(forward.outputs) - len(plan.updates) - plan.results
    fits = (
        plan.numbers <= needed
        and len(plan.orders) == len(plan.derived)
        and all(sorted(order) == list(range(len(order))) for order in plan.orders)
        and len(signature.inputs) == needed + len(plan.derived)
        and len(signature.outputs) == given
    )
    if not fits:
        raise ValueError("its two graphs do not belong together")
    return plan


def _check_places(
    found: SavedCall, stored: Sequence[StoredTensor], results: Iterable[tuple[str, Any]]
) -> None:
    """Refuse a call of which a part names something that there is not."""
    limits = {"argument": len(found.interface.tensors), "state": len(stored)}
    made = len(found.forward.signature.outputs) - len(found.updates)
    if found.plan is not None:  # behind those of the call is what the backward graph needs
        made = found.plan.results
    expect(made >= 0, "list of results", made)
    for kind, place in (*(p for p in found.interface.inputs if p[0] in limits), *results):
        limit = limits.get(kind, made if kind == "result" else None)
        if limit is not None and not 0 <= whole(place) < limit:
            raise ValueError(f"{kind} {place} is named, of {limit}")
    for slot, (kind, place) in zip(
        found.forward.signature.inputs, found.interface.inputs, strict=True
    ):
        expected: Any = {"size": "int", "nothing": slot.kind}.get(kind, "tensor")
        expect(slot.kind == expected and (kind != "nothing" or slot.name is None), "source", kind)
        if kind in limits:
            tensor = (found.interface.tensors if kind == "argument" else stored)[place]
            fits = tensor.dtype is slot.dtype and len(tensor.shape) == len(slot.shape)
            expect(fits, f"argument of {slot.dtype} and {len(slot.shape)} dimensions", tensor)


DAMAGE = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError, OSError, RuntimeError),
    *(SyntaxError, TypeError, ValueError),
)
"""What values lead to that nobody has thought of: torch raises RuntimeError, and so does Python
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
    if saved.inside:
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
    stored = saved.stored
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
