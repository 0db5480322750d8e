"""A model as boxes and arrows, before anybody decides where they stand.

Initializers and constants are no boxes: they are lines in the boxes that read them, without which
a graph of some hundred nodes cannot be looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import onnx_ir as ir

from dort_rewriter.graph.schemas import qualified
from dort_rewriter.tools.onnx_text import (
    attribute_text,
    shape_list,
    subgraphs,
    tensor_text,
    type_text,
)

ATTRIBUTES = 3
"""Attributes written in a box; pretty_onnx has them all."""

WIDTH = 34
"""Characters of a line in a box."""


@dataclass(frozen=True, kw_only=True)
class Box:
    """A node, an input or an output."""

    name: str
    """Unique within the diagram."""
    title: str
    lines: tuple[str, ...] = ()
    kind: Literal["input", "node", "output"] = "node"
    domain: str = ""
    tooltip: str = ""


@dataclass(frozen=True, kw_only=True)
class Arrow:
    """A value on its way from one box to another."""

    start: str
    end: str
    label: str = ""
    """Its shape, and its type unless it is float32."""
    tooltip: str = ""
    """Its name."""
    returns: bool = False
    """Whether it leaves a subgraph for the node that owns it."""


@dataclass(kw_only=True)
class Frame:
    """What stands together: the model, a subgraph, the body of a function."""

    title: str = ""
    boxes: list[Box] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)

    def all_boxes(self) -> Iterator[Box]:
        """Yield the boxes of this frame, then those of the frames in it."""
        yield from self.boxes
        for frame in self.frames:
            yield from frame.all_boxes()


@dataclass(kw_only=True)
class Diagram:
    """Boxes within frames, and the arrows between them."""

    root: Frame
    arrows: list[Arrow] = field(default_factory=list)

    @property
    def domains(self) -> list[str]:
        """The domains of the nodes, ONNX's own first."""
        used = {box.domain for box in self.root.all_boxes() if box.kind == "node"}
        return sorted(used)


def make_diagram(model: ir.Model | ir.Graph) -> Diagram:
    """The diagram of a model, the bodies of its functions beside it, or of a graph."""
    return _Builder().build(model)


class _Builder:
    def __init__(self) -> None:
        self.diagram = Diagram(root=Frame())
        self.makers: dict[ir.Value, str] = {}
        """The box that each value comes from."""
        self.constants: dict[ir.Value, str] = {}
        """The line that stands for each value known in advance."""
        self.count = 0

    def build(self, model: ir.Model | ir.Graph) -> Diagram:
        root = self.diagram.root
        graph = model.graph if isinstance(model, ir.Model) else model
        self._inputs(root, (v for v in graph.inputs if v.name not in graph.initializers))
        self._nodes(root, graph)
        self._outputs(root, graph.outputs)
        for function in model.functions.values() if isinstance(model, ir.Model) else ():
            frame = Frame(title=f"function {qualified(function.domain, function.name)}")
            self._inputs(frame, function.inputs)
            self._nodes(frame, function)
            self._outputs(frame, function.outputs)
            root.frames.append(frame)
        return self.diagram

    def _add(self, frame: Frame, title: str, **details: Any) -> str:
        name = f"n{self.count}"
        self.count += 1
        frame.boxes.append(Box(name=name, title=_short(title), **details))
        return name

    def _inputs(self, frame: Frame, values: Iterable[ir.Value]) -> None:
        for value in values:
            line = (text,) if (text := _value_text(value, always_typed=True)) else ()
            self.makers[value] = self._add(frame, value.name or "?", lines=line, kind="input")

    def _outputs(self, frame: Frame, values: Iterable[ir.Value]) -> None:
        for value in values:
            box = self._add(
                frame, value.name or "?", lines=self._constant_lines([value]), kind="output"
            )
            self._arrow(value, box)

    def _nodes(self, frame: Frame, graph: ir.Graph | ir.Function) -> None:
        if isinstance(graph, ir.Graph):
            for value in graph.initializers.values():
                self.constants[value] = _constant_text(value, value.const_value)
        for node in graph:
            if node.op_type == "Constant" and not node.domain and not node.inputs:
                self._constant(node)
            else:
                self._node(frame, node)

    def _constant(self, node: ir.Node) -> None:
        value = node.outputs[0]
        tensor = ir.convenience.get_const_tensor(value)
        attribute = next(iter(node.attributes.values()), None)
        text = _constant_text(value, tensor)
        if tensor is None and attribute is not None:
            text = attribute_text(attribute)
        self.constants[value] = text

    def _node(self, frame: Frame, node: ir.Node) -> None:
        plain = [a for a in node.attributes.values() if subgraphs(a) is None]
        lines = [f"{a.name}={attribute_text(a)}" for a in plain[:ATTRIBUTES]]
        lines += ["..."] * (len(plain) > ATTRIBUTES)
        box = self._add(
            frame,
            qualified(node.domain, node.op_type),
            lines=(*self._constant_lines(node.inputs), *map(_short, lines)),
            domain=node.domain,
            tooltip=node.metadata_props.get("source", "") or node.name or "",
        )
        for value in node.inputs:
            self._arrow(value, box)
        for attribute in node.attributes.values():
            for _, graph in subgraphs(attribute) or ():
                self._subgraph(frame, f"{node.op_type} {attribute.name}", graph, box)
        for value in node.outputs:
            self.makers[value] = box

    def _subgraph(self, frame: Frame, title: str, graph: ir.Graph, owner: str) -> None:
        inner = Frame(title=title)
        frame.frames.append(inner)
        self._inputs(inner, graph.inputs)
        self._nodes(inner, graph)
        for value in graph.outputs:
            self._arrow(value, owner, returns=True)

    def _constant_lines(self, values: Iterable[ir.Value | None]) -> tuple[str, ...]:
        """A line for each operand that is known, with its position among several."""
        operands = list(values)
        return tuple(
            _short(f"#{i}: {self.constants[v]}" if len(operands) > 1 else self.constants[v])
            for i, v in enumerate(operands)
            if v is not None and v in self.constants
        )

    def _arrow(self, value: ir.Value | None, end: str, returns: bool = False) -> None:
        if value is None or (start := self.makers.get(value)) is None:
            return
        self.diagram.arrows.append(
            Arrow(
                start=start,
                end=end,
                label=_value_text(value),
                tooltip=value.name or "",
                returns=returns,
            )
        )


def _value_text(value: ir.Value, always_typed: bool = False) -> str:
    """``N x 3``, with the type in front when it says something."""
    kind = type_text(value)
    shown = "" if kind == "?" or (kind == "float32" and not always_typed) else kind
    if value.shape is None:
        return shown
    sizes = " x ".join(str(size) for size in shape_list(value.shape)) or "scalar"
    return f"{shown} {sizes}".strip()


def _constant_text(value: ir.Value, tensor: ir.TensorProtocol | None) -> str:
    if tensor is None:
        return f"{value.name} {_value_text(value, always_typed=True)}"
    if tensor.size <= 4 and (text := tensor_text(tensor)):
        return text.removeprefix("array(").removesuffix(")")
    sizes = " x ".join(str(size) for size in shape_list(tensor.shape))
    return f"{value.name} {sizes}"


def _short(text: str) -> str:
    return text if len(text) <= WIDTH else f"{text[: WIDTH - 3]}..."
