"""What is in the folder of a saved model, for people and for programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dort_rewriter.deployment.folder import (
    StoredTensor,
    checked_file,
    made_by,
    read_description,
)
from dort_rewriter.deployment.interface import Interface
from dort_rewriter.deployment.loading import spell_settings
from dort_rewriter.deployment.reading import damage_is_named, read_whole
from dort_rewriter.tools.models import count_nodes, load_model

__all__ = ["SavedContent", "read_saved"]

SHOWN = 20
"""Tensors that have a line of their own."""


@dataclass(frozen=True)
class SavedContent:
    """What was saved."""

    folder: Path
    content: Mapping[str, Any]
    interface: Interface
    stored: tuple[StoredTensor, ...]
    nodes: Mapping[str, int]
    """The nodes of its ONNX model by type; none where a call computes nothing."""

    @property
    def model(self) -> Path | None:
        """The file of its ONNX model."""
        entry = self.content["files"].get("model")
        return None if entry is None else checked_file(self.folder, entry)

    def to_dict(self) -> dict[str, Any]:
        """What a program asks of it."""
        content = self.content
        return {
            "made_by": content["made_by"],
            "here": made_by(),
            "loads_here": content["made_by"] == made_by(),
            "settings": content["settings"],
            "training": content["training"],
            "gradients": content["backward"] is not None,
            "weights": content["weights"],
            "arguments": [
                {
                    "name": t.name,
                    "type": _dtype(t),
                    "shape": list(t.shape),
                    "device": str(t.device),
                }
                for t in self.interface.tensors
            ],
            "conditions": self._conditions(),
            "result": content["result"],
            "files": dict(content["files"]),
            "nodes": sum(self.nodes.values()),
            "nodes_by_type": dict(self.nodes),
            "tensors": [{**t.spell(), "bytes": t.bytes} for t in self.stored],
        }

    def __str__(self) -> str:
        """Its versions, its call, its model, its weights."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        content, here = self.content, made_by()
        size = sum(int(entry["bytes"]) for entry in content["files"].values())
        yield f"{self.folder}: a saved model, {_size(size)}"
        yield f"made by: {_versions(content['made_by'])}"
        if content["made_by"] != here:
            yield f"here is: {_versions(here)}: it has to be saved again"
        mode = "training" if content["training"] else "evaluation"
        yield f"called under: {spell_settings(content['settings'])}; module in {mode} mode"
        yield "arguments:" if self.interface.trees else "arguments: none"
        for tensor in self.interface.tensors:
            written = ", written to or shown by a result" if tensor.shared else ""
            yield f"  {tensor.name}: {_dtype(tensor)} {tensor.shape_text()}{written}"
        for name, tree in self.interface.trees.items():
            if fixed := _fixed(tree):
                yield f"  {name}: {fixed}, part of the graph"
        if conditions := self._conditions():
            yield f"  where {'; '.join(conditions)}"
        names = {
            "argument": [t.name for t in self.interface.tensors],
            "state": [t.name for t in self.stored],
        }
        yield f"result: {_structure(content['result'], names)}"
        yield from self._model_lines()
        yield from self._tensor_lines()

    def _conditions(self) -> list[str]:
        """How the sizes of a call relate to each other."""
        names = {
            i: self.interface.tensors[place].name
            for i, (kind, place) in enumerate(self.interface.inputs)
            if kind == "argument"
        }
        return [r.describe(names) for r in self.interface.relations]

    def _model_lines(self) -> Iterator[str]:
        files = self.content["files"]
        if "model" not in files:
            yield "model: none, nothing is computed"
            return
        common = ", ".join(f"{n} {name}" for name, n in list(self.nodes.items())[:6])
        more = ", ..." if len(self.nodes) > 6 else ""
        yield (
            f"model: {files['model']['file']}, {self._bytes('model')}, "
            f"{sum(self.nodes.values())} nodes ({common}{more})"
        )
        if "backward" in files:
            yield f"gradients: {files['backward']['file']}, {self._bytes('backward')}"

    def _bytes(self, kind: str) -> str:
        """How large the files of a model are."""
        files = self.content["files"]
        names = [name for name in (kind, f"{kind} data") if name in files]
        return _size(sum(int(files[name]["bytes"]) for name in names))

    def _tensor_lines(self) -> Iterator[str]:
        kept = sum(t.bytes for t in self.stored)
        place = "inside" if self.content["weights"] == "inside" else "by reference"
        yield f"weights: {len(self.stored)} tensors {place}, {_size(kept)}"
        for tensor in self.stored[:SHOWN]:
            written = ", written to" if tensor.written else ""
            yield f"  {tensor.name}: {tensor.kind}, {_dtype(tensor)} {tensor.shape}{written}"
        if len(self.stored) > SHOWN:
            yield f"  ... {len(self.stored) - SHOWN} more"


def read_saved(folder: Path) -> SavedContent:
    """What :func:`dort_rewriter.save` wrote, also with other versions.

    Raises :class:`ExecutionError` when there is none, or when it is damaged.
    """
    content = read_description(folder)
    with damage_is_named(folder):
        saved = read_whole(content)
        found = SavedContent(folder, content, saved.interface, saved.stored, {})
        if (model := found.model) is None:
            return found
        return dataclasses.replace(found, nodes=count_nodes(load_model(model)))


def _dtype(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _versions(versions: Mapping[str, str]) -> str:
    ordered = {k: versions[k] for k in (*made_by(), *versions) if k in versions}  # torch first
    return ", ".join(v if k in v else f"{k} {v}" for k, v in ordered.items())


def _size(size: int) -> str:
    if size < 10_000:
        return f"{size} bytes"
    return f"{size / 1e3:,.0f} kB" if size < 10e6 else f"{size / 1e6:,.0f} MB"


def _fixed(tree: Mapping[str, Any]) -> str:
    """The value of an argument that is none of tensors; an empty text for others."""
    (kind, value), *_ = tree.items()
    if kind == "value":
        return repr(value)
    return str(value[1]) if kind == "torch" else ""


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
