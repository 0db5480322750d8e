"""pprint_storage: what a backend kept of each compiled graph, a few lines each."""

from __future__ import annotations

import pprint
from collections import Counter
from collections.abc import Mapping
from typing import Any, TextIO

from dort_rewriter.graph.schemas import qualified
from dort_rewriter.signature import InputSlot, OutputSlot

__all__ = ["pprint_storage"]


def pprint_storage(storage: Any, file: TextIO | None = None) -> str:
    """Describe what ``onnx_custom_backend(..., storage=storage)`` put into ``storage``, as text.

    Each graph is described by its nodes by type, its inputs and outputs, its providers, and
    whether it ran; anything else than such a storage as ``pprint`` does. ``file`` gets the text
    too.
    """
    text = _text(storage)
    if file is not None:
        print(text, file=file)
    return text


def _text(storage: Any) -> str:
    instances = storage.get("instance") if isinstance(storage, Mapping) else None
    if instances is None and storage != {}:
        return pprint.pformat(storage)
    instances = instances or []
    lines = [f"[{i}] {_summary(instance)}" for i, instance in enumerate(instances)]
    return "\n".join([f"{len(instances)} compiled graph(s)", *lines])


def _summary(instance: Mapping[str, Any]) -> str:
    model, signature = instance["onnx"], instance["builder"].signature
    opsets = ", ".join(f"{o.domain or 'ai.onnx'}:{o.version}" for o in model.opset_import)
    types = Counter(qualified(n.domain, n.op_type) for n in model.graph.node)
    counts = ", ".join(f"{count} {name}" for name, count in types.most_common())
    return "\n    ".join(
        [
            f"{len(instance['graph_module'].graph.nodes)} FX nodes, {len(model.graph.node)} ONNX "
            f"nodes, opset {opsets}, on {_providers(instance)}",
            f"nodes:   {counts or 'none'}",
            f"inputs:  {', '.join(_describe(s) for s in signature.inputs) or 'none'}",
            f"outputs: {', '.join(_describe(s) for s in signature.outputs) or 'none'}",
            "ran" if instance["inputs"] else "did not run yet",
        ]
    )


def _providers(instance: Mapping[str, Any]) -> str:
    """The providers of a session, and how many nodes each has."""
    placed = instance["placement"]
    said = [
        name if placed is None else f"{name} ({sum(placed.get(name, {}).values())} nodes)"
        for name in instance["providers"]
    ]
    return ", ".join(said) or "no session"


def _describe(slot: InputSlot | OutputSlot) -> str:
    if slot.dtype is None:
        return "None"
    name = slot.name or "(not read)"
    if slot.kind != "tensor":
        return f"{name} {slot.kind}"
    return f"{name} {str(slot.dtype).removeprefix('torch.')}{list(slot.shape)}".replace("'", "")
