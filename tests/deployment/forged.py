"""Descriptions of saved models that somebody changed, who knows how they are checked."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["FORGED", "FORGED_GRAPHS", "rewrite"]


def rewrite(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change a description, and its digest with it."""
    path = folder / "saved.json"
    content = json.loads(path.read_text())["content"]
    change(content)
    text = json.dumps(content, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()
    path.write_text(f'{{"sha256": "{digest}",\n"content": {text}}}\n')


def _output(content: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = content["graph"]["signature"]["outputs"][0]
    return found


def _view(op: str, *kwargs: Any) -> list[Any]:
    return ["tuple", ["ViewStep", op, ["tuple"], ["tuple", *kwargs]]]


FORGED_GRAPHS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "code as an operator": lambda c: _output(c).update(views=_view("aten::t\nprint(1)")),
    "code as a name": lambda c: _output(c).update(
        views=_view("aten::t", ["tuple", "a=1)\nprint(1", 1])
    ),
    "an operator that writes": lambda c: _output(c).update(views=_view("aten::zero_")),
    "an operator that makes": lambda c: _output(c).update(views=_view("aten::from_file")),
    "another namespace": lambda c: _output(c).update(views=_view("prims::view_of")),
    "code as a kind": lambda c: _output(c).update(kind="print(1) or int"),
    "code as a value": lambda c: _output(c).update(source="constant", value="print(1)"),
    "code as a place": lambda c: _output(c).update(source="input", index="0 if print(1) else 0"),
    "an argument that is none": lambda c: _output(c).update(source="input", index=1000),
    "code as a size": lambda c: _output(c).update(
        kind="int", source="size", size=["InputDim", 0, "0 if print(1) else 0"]
    ),
    "an unknown record": lambda c: _output(c).update(size=["Popen", "true"]),
    "another field": lambda c: _output(c).update(code="print(1)"),
    "an unknown type": lambda c: _output(c).update(dtype=["dtype", "__name__"]),
    "a list for a dictionary": lambda c: c["graph"].update(signature=[]),
}
"""Those of the graph."""

FORGED: dict[str, Callable[[dict[str, Any]], Any]] = {
    **FORGED_GRAPHS,
    "an unknown option": lambda c: c["options"].update(arena="nowhere"),
    "a missing option": lambda c: c["options"].pop("arena"),
    "a way out of the folder": lambda c: c["files"]["model"].update(file="../model.onnx"),
    "an absolute path": lambda c: c["files"]["tensors"].update(file="/etc/passwd"),
    "a tensor behind the end": lambda c: c["tensors"][0].update(offset=2**40),
    "a tensor too large": lambda c: c["tensors"][0].update(shape=[10**6, 10**6]),
    "a tensor askew": lambda c: c["tensors"][0].update(offset=1),
    "a negative size": lambda c: c["tensors"][0].update(shape=[-1, 4]),
    "a state that is none": lambda c: c["arguments"]["inputs"].__setitem__(0, ["state", 99]),
    "a result that is none": lambda c: c.update(result={"result": 7}),
    "a class as a result": lambda c: c.update(result={"named": ["x, y): pass", []]}),
    "no arguments": lambda c: c.pop("arguments"),
    "another list for a dictionary": lambda c: c.update(graph=[]),
    "gradients of a list": lambda c: c.update(backward=[1]),
    "an update of nothing": lambda c: c.update(updates=[77]),
}
