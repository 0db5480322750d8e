"""What is in the folder of a saved model, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dort_rewriter.deployment.folder import made_by, read_description, spell_versions
from dort_rewriter.deployment.interface import describe_calls
from dort_rewriter.deployment.loading import spell_settings
from dort_rewriter.deployment.reading import Description, damage_is_named, read_whole
from dort_rewriter.deployment.serialization import spell
from dort_rewriter.runtime.providers import with_nodes
from dort_rewriter.tools.models import count_nodes, load_model

SHOWN = 20
"""Tensors that have a line of their own."""


@dataclass(frozen=True)
class SavedContent:
    """What was saved."""

    folder: Path
    saved: Description
    counts: tuple[Mapping[str, int], ...]
    """The nodes of the ONNX model of each call by type; none where it computes nothing."""

    @property
    def model(self) -> Any:
        """The ONNX model of the first call, None where it computes nothing."""
        return _model_of(self.folder, self.saved, 0)

    def to_dict(self) -> dict[str, Any]:
        """What a program asks of it."""
        saved = self.saved
        return {
            "made_by": saved.made_by,
            "here": made_by(),
            "loads_here": saved.made_by == made_by(),
            "settings": saved.settings,
            "training": saved.training,
            "gradients": saved.calls[0].backward is not None,
            "weights": saved.weights,
            "calls": [self._call(i) for i in range(len(saved.calls))],
            "files": saved.files,
            "tensors": [{**spell(t), "bytes": t.bytes} for t in saved.tensors],
        }

    def _call(self, place: int) -> dict[str, Any]:
        call = self.saved.calls[place]
        interface = call.arguments
        return {
            "arguments": [
                {
                    "name": t.name,
                    "type": _dtype(t),
                    "shape": list(t.shape),
                    "limits": limits,
                    "device": str(t.device),
                }
                for t, limits in zip(interface.tensors, interface.limits(), strict=True)
            ],
            "constants": interface.constants(),
            "conditions": interface.conditions(),
            "result": call.result,
            "providers": {k: [name for name, _ in g.providers] for k, g in call.graphs.items()},
            "placement": {k: g.placement for k, g in call.graphs.items()},
            "nodes": sum(self.counts[place].values()),
            "nodes_by_type": dict(self.counts[place]),
        }

    def __str__(self) -> str:
        """Its versions, its calls with their models, its weights."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        saved, here = self.saved, made_by()
        size = sum(int(entry["bytes"]) for entry in saved.files.values())
        yield f"{self.folder}: a saved model, {_size(size)}"
        yield f"made by: {_versions(saved.made_by)}"
        if saved.made_by != here:
            yield f"here is: {_versions(here)}: it has to be saved again"
        mode = "training" if saved.training else "evaluation"
        yield f"called under: {spell_settings(saved.settings)}; module in {mode} mode"
        if len(self.saved.calls) > 1:
            yield f"graphs: {len(self.saved.calls)}; the first that takes the arguments is run"
        for place, text in enumerate(describe_calls([c.arguments for c in self.saved.calls])):
            if len(self.saved.calls) > 1:
                yield f"graph {place + 1} of {len(self.saved.calls)}: {text}"
            yield from self._call_lines(place)
        yield from self._tensor_lines()

    def _call_lines(self, place: int) -> Iterator[str]:
        interface = self.saved.calls[place].arguments
        yield "arguments:" if interface.parameters else "arguments: none"
        for tensor, limits in zip(interface.tensors, interface.limits(), strict=True):
            written = ", written to or shown by a result" if tensor.shared else ""
            yield f"  {tensor.name}: {_dtype(tensor)} {limits}{written}"
        for name, fixed in interface.constants().items():
            yield f"  {name}: {fixed}, part of the graph"
        if conditions := interface.conditions():
            yield f"  where {'; '.join(conditions)}"
        names = {
            "argument": [t.name for t in interface.tensors],
            "state": [t.name for t in self.saved.tensors],
        }
        yield f"result: {_structure(self.saved.calls[place].result, names)}"
        yield from self._model_lines(place)

    def _model_lines(self, place: int) -> Iterator[str]:
        files, nodes = self.saved.files, self.counts[place]
        kind, backward = f"model {place}", f"backward {place}"
        if kind not in files:
            yield "model: none, nothing is computed"
            return
        common = ", ".join(f"{n} {name}" for name, n in list(nodes.items())[:6])
        more = ", ..." if len(nodes) > 6 else ""
        yield (
            f"model: {files[kind]['file']}, {self._bytes(kind)}, "
            f"{sum(nodes.values())} nodes ({common}{more}){self._where(place, 'model')}"
        )
        if backward in files:
            where = self._where(place, "backward")
            yield f"gradients: {files[backward]['file']}, {self._bytes(backward)}{where}"

    def _where(self, place: int, kind: str) -> str:
        """On which providers a graph ran when it was saved, and if it is compiled for them."""
        graph = self.saved.calls[place].graphs[kind]
        ran = with_nodes((name for name, _ in graph.providers), graph.placement)
        compiled = self.saved.files.get(f"{kind} {place} compiled")
        form = "" if compiled is None else f", compiled: {compiled['file']}"
        return f", on {ran}{form}"

    def _bytes(self, kind: str) -> str:
        """How large the files of a model are."""
        files = self.saved.files
        names = [name for name in (kind, f"{kind} data") if name in files]
        return _size(sum(int(files[name]["bytes"]) for name in names))

    def _tensor_lines(self) -> Iterator[str]:
        kept = sum(t.bytes for t in self.saved.tensors)
        place = "inside" if self.saved.weights == "inside" else "by reference"
        yield f"weights: {len(self.saved.tensors)} tensors {place}, {_size(kept)}"
        for tensor in self.saved.tensors[:SHOWN]:
            written = ", written to" if tensor.written else ""
            yield f"  {tensor.name}: {tensor.kind}, {_dtype(tensor)} {tensor.shape}{written}"
        if len(self.saved.tensors) > SHOWN:
            yield f"  ... {len(self.saved.tensors) - SHOWN} more"


def read_saved(folder: Path) -> SavedContent:
    """What :func:`dort_rewriter.save` wrote, also with other versions.

    Raises :class:`ExecutionError` when there is none, or when it is damaged.
    """
    content = read_description(folder)
    with damage_is_named(folder):
        saved = read_whole(content)
        models = [_model_of(folder, saved, i) for i in range(len(saved.calls))]
        counts = tuple({} if m is None else count_nodes(load_model(m)) for m in models)
        return SavedContent(folder, saved, counts)


def _model_of(folder: Path, saved: Description, place: int) -> Any:
    """The ONNX model of a call; None where it computes nothing."""
    files = saved.models(folder, place).get("model")
    return None if files is None else files.read()


def _dtype(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _versions(versions: Mapping[str, str]) -> str:
    return spell_versions({k: versions[k] for k in (*made_by(), *versions) if k in versions})


def _size(size: int) -> str:
    if size < 10_000:
        return f"{size} bytes"
    return f"{size / 1e3:,.0f} kB" if size < 10e6 else f"{size / 1e6:,.0f} MB"


def _structure(result: Any, names: Mapping[str, Sequence[str]]) -> str:
    """A nested result in one line; what is no result of the graph has its name."""
    (kind, value), *_ = result.items()
    if kind in names:
        return f"{names[kind][int(value)]} itself"
    if kind in ("list", "tuple"):
        return f"{kind} of ({', '.join(_structure(part, names) for part in value)})"
    if kind == "named":
        name, fields = value
        return f"{name}({_fields(fields, names)})"
    if kind in ("dict", "record"):
        return f"{kind} of ({_fields(value, names)})"
    if kind == "result":
        return f"result {value}"
    return repr(value) if kind == "value" else str(value)


def _fields(fields: Sequence[Sequence[Any]], names: Mapping[str, Sequence[str]]) -> str:
    return ", ".join(f"{name}: {_structure(part, names)}" for name, part in fields)
