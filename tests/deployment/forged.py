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


def _call(content: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = content["calls"][0]
    return found


def _arguments(content: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = _call(content)["arguments"]
    return found


def _output(content: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = _call(content)["graph"]["signature"]["outputs"][0]
    return found


def _view(op: str, *kwargs: Any, args: tuple[Any, ...] = ()) -> list[Any]:
    return [["ViewStep", op, ["tuple", *args], ["tuple", *kwargs]]]


def _strided(op: str, size: list[int], stride: list[int], offset: Any = None) -> Any:
    """What is outside of a result of six numbers."""
    args = (["tuple", *size], ["tuple", *stride], *([] if offset is None else [offset]))
    return lambda c: _output(c).update(views=_view(op, args=args))


OUT_OF_BOUNDS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a reshaped alias": _strided("aten::_reshape_alias", [100, 100], [100, 1]),
    "strides in place": _strided("aten::as_strided_", [10**6], [1], 0),
    "an offset in place": _strided("aten::as_strided_", [2], [1], 2**40),
    "an overflow in place": _strided("aten::as_strided_", [2**62], [4], 0),
    "a place before it": _strided("aten::as_strided_", [2], [1], -64),
    "strides": _strided("aten::as_strided", [10**6], [1], 0),
    "an overflow": _strided("aten::as_strided", [2**62], [4], 0),
    "a negative size": _strided("aten::as_strided_", [-1, 2**32], [3, 2], 0),
    "an inverse of a slice": lambda c: _output(c).update(
        views=_view("aten::slice_inverse", args=(["InputDim", 0, 0], 0, 0, 2**40, 1))
    ),
    "values of a sparse tensor": lambda c: _output(c).update(views=_view("aten::_values")),
    "a cast": lambda c: _output(c).update(
        views=_view("aten::to.dtype", args=(["dtype", "float64"],))
    ),
    "a quantized type": lambda c: _output(c).update(
        views=_view("aten::view.dtype", args=(["dtype", "quint8"],))
    ),
    "a new layout": lambda c: _output(c).update(
        views=_view("lay_out", args=(["tuple", 2**62, 2**62],))
    ),
}
"""Views of what is not in the memory of a result."""

FORGED_GRAPHS: dict[str, Callable[[dict[str, Any]], Any]] = {
    **OUT_OF_BOUNDS,
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
    "an unknown type": lambda c: _output(c).update(dtype="__name__"),
    "a list for a dictionary": lambda c: _call(c)["graph"].update(signature=[]),
    "more views than there may be": lambda c: _output(c).update(views=_view("aten::t") * 1002),
}
"""Those of the graph."""


FORGED: dict[str, Callable[[dict[str, Any]], Any]] = {
    **FORGED_GRAPHS,
    "an unknown option": lambda c: c["options"].update(arena="nowhere"),
    "a missing option": lambda c: c["options"].pop("arena"),
    "a way out of the folder": lambda c: c["files"]["model 0"].update(file="../model.onnx"),
    "an absolute path": lambda c: c["files"]["tensors"].update(file="/etc/passwd"),
    "a tensor behind the end": lambda c: c["tensors"][0].update(offset=2**40),
    "a tensor too large": lambda c: c["tensors"][0].update(shape=[10**6, 10**6]),
    "a tensor askew": lambda c: c["tensors"][0].update(offset=1),
    "a negative size": lambda c: c["tensors"][0].update(shape=[-1, 4]),
    "a state that is none": lambda c: _arguments(c)["inputs"].__setitem__(0, ["state", 99]),
    "a result that is none": lambda c: _call(c).update(result={"result": 7}),
    "a class as a result": lambda c: _call(c).update(result={"named": ["x, y): pass", []]}),
    "no arguments": lambda c: _call(c).pop("arguments"),
    "another list for a dictionary": lambda c: _call(c).update(graph=[]),
    "gradients of a list": lambda c: _call(c).update(backward=[1]),
    "an update of nothing": lambda c: _call(c).update(updates=[77]),
    "a library of a provider": lambda c: _call(c)["graph"]["providers"].insert(
        0, ["QNNExecutionProvider", {"backend_path": "/tmp/evil.so"}]
    ),
    "more threads than there are": lambda c: c["options"].update(intra_op_threads=10**6),
    "a keyword as a name": lambda c: _output(c).update(
        views=_view("aten::t", ["tuple", "class", 1])
    ),
    "a size that divides by zero": lambda c: _arguments(c)["relations"].append(
        {"op": "eq", "left": ["SizeExpression", "floordiv", ["InputDim", 4, 0], 0], "right": 3}
    ),
    "a large number": lambda c: _arguments(c)["tensors"][0].update(shape=[10**400, 4]),
    "no device": lambda c: c["tensors"][0].update(device="nowhere"),
    "another device": lambda c: c["tensors"][0].update(device="meta"),
    "a quantized tensor": lambda c: c["tensors"][0].update(dtype="quint8"),
    "a tensor of another type": lambda c: c["tensors"][0].update(dtype="float64"),
    "sizes beyond a product": lambda c: c["tensors"][0].update(shape=[2**40, 2**40]),
    "no settings": lambda c: c.update(settings={}),
    "no tree": lambda c: _arguments(c)["parameters"][0].update(tree=[]),
    "an unknown kind of parameter": lambda c: _arguments(c)["parameters"][0].update(kind=1),
    "a default that is none": lambda c: _arguments(c)["parameters"][0].update(default="x"),
    "a field more": lambda c: c.update(more=1),
    "another mode": lambda c: c.update(training="no"),
    "weights elsewhere": lambda c: c.update(weights="reference"),
    "a file of no size": lambda c: c["files"]["tensors"].update(bytes=None),
    "a name that is none": lambda c: _call(c).update(
        result={"named": ["class", [["x", {"result": 0}]]]}
    ),
    "a list of versions": lambda c: c.update(made_by=[]),
    "no call": lambda c: c.update(calls=[]),
    "calls in no list": lambda c: c.update(calls={"0": _call(c)}),
    "a call of another kind": lambda c: c["calls"].append([]),
    "a call with a field more": lambda c: _call(c).update(files={}),
    "more calls than there may be": lambda c: c.update(calls=[_call(c)] * 300),
    "a model of a call that is none": lambda c: c["files"].update(
        {"model 1": c["files"]["model 0"]}
    ),
    "a write to another type": lambda c: _call(c)["graph"]["writes"].update(
        arguments={"output_0": 99}
    ),
}
