"""pprint_storage: what a backend kept of each compiled graph, a few lines each."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from typing import Any, TextIO

from dort_rewriter.signature import InputSlot, OutputSlot

__all__ = ["pprint_storage"]


def pprint_storage(storage: Mapping[str, Any], file: TextIO | None = None) -> None:
    """Print what ``onnx_custom_backend(..., storage=storage)`` put into ``storage``.

    Each graph is described by its nodes by type, its inputs and outputs, its providers, and
    whether it ran; ``file`` is the standard output when it is None.
    """
    stream = sys.stdout if file is None else file
    instances = storage.get("instance", [])
    print(f"{len(instances)} compiled graph(s)", file=stream)
    for i, instance in enumerate(instances):
        print(f"[{i}] {_summary(instance)}", file=stream)


def _summary(instance: Mapping[str, Any]) -> str:
    model, signature = instance["onnx"], instance["builder"].signature
    opsets = ", ".join(f"{o.domain or 'ai.onnx'}:{o.version}" for o in model.opset_import)
    types = Counter(f"{n.domain}::{n.op_type}".lstrip(":") for n in model.graph.node)
    counts = ", ".join(f"{count} {name}" for name, count in types.most_common())
    return "\n    ".join(
        [
            f"{len(instance['graph_module'].graph.nodes)} FX nodes, {len(model.graph.node)} ONNX "
            f"nodes, opset {opsets}, on {', '.join(instance['providers']) or 'no session'}",
            f"nodes:   {counts or 'none'}",
            f"inputs:  {', '.join(_describe(s) for s in signature.inputs) or 'none'}",
            f"outputs: {', '.join(_describe(s) for s in signature.outputs) or 'none'}",
            "ran" if instance["inputs"] else "did not run yet",
        ]
    )


def _describe(slot: InputSlot | OutputSlot) -> str:
    if slot.dtype is None:
        return "None"
    name = slot.name or "(not read)"
    if slot.kind != "tensor":
        return f"{name} {slot.kind}"
    return f"{name} {str(slot.dtype).removeprefix('torch.')}{list(slot.shape)}".replace("'", "")
