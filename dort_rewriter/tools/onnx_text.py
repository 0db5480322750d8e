"""pretty_onnx: a model as compact text, one line for each node."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from dort_rewriter.errors import OptionError
from dort_rewriter.graph.schemas import qualified
from dort_rewriter.tools.models import load_part

SMALL = 10
"""Elements of a tensor up to which its values are written."""

LONG = 60
"""Characters of a text attribute up to which it is written in full."""

_ELEMENT_TYPES = frozenset({"to", "dtype", "output_dtype", "stash_type", "saturate_type"})
"""Attributes whose number is an element type."""


def pretty_onnx(model: Any, *, source: bool = False) -> str:
    """A model, a graph, a function, a node, a tensor or an attribute as text.

    Subgraphs are indented below their node, local functions follow the graph.

    Args:
        model: an object of ``onnx`` or ``onnx_ir``; for a whole model its bytes or a path too.
        source: end each node with the Python line it comes from, when the exporter kept it.

    Raises:
        OptionError: for anything else.

    """
    return "\n".join(_Writer(source).write(load_part(model)))


class _Writer:
    def __init__(self, source: bool) -> None:
        self.source = source

    def write(self, item: Any) -> Iterator[str]:
        match item:
            case ir.Model():
                yield from self._model(item)
            case ir.Graph() | ir.GraphView():
                yield from self._graph(item)
            case ir.Function():
                yield from self._function(item)
            case ir.Node():
                yield from self._node(item)
            case ir.Attr():
                yield f"{item.name}={attribute_text(item)}"
            case ir.Value():
                yield _value("value", item)
            case ir.TensorProtocol():
                yield f"tensor: {_tensor_line(item.name or '', item)}"
            case _:
                raise OptionError(
                    "pretty_onnx takes an object of onnx or onnx_ir, the bytes or the path of a "
                    f"model, not {type(item).__name__}."
                )

    def _model(self, model: ir.Model) -> Iterator[str]:
        yield from _opsets(model.graph.opset_imports)
        yield from self._graph(model.graph)
        for function in model.functions.values():
            yield from self._function(function)

    def _graph(self, graph: ir.Graph | ir.GraphView) -> Iterator[str]:
        for value in graph.inputs:
            if value.name not in graph.initializers:
                yield _value("input", value)
        for value in graph.initializers.values():
            if value.const_value is None:
                yield _value("init", value)
            else:
                yield f"init: {_tensor_line(value.name or '', value.const_value)}"
        for node in graph:
            yield from self._node(node)
        for value in graph.outputs:
            yield _value("output", value)

    def _function(self, function: ir.Function) -> Iterator[str]:
        overload = f" overload={function.overload!r}" if function.overload else ""
        yield f"function: name={function.name!r} domain={function.domain!r}{overload}"
        lines = [*_opsets(function.opset_imports)]
        lines += [f"input: name={value.name!r}" for value in function.inputs]
        for attribute in sorted(function.attributes.values(), key=lambda a: a.value is not None):
            default = "" if attribute.value is None else f" default={attribute_text(attribute)}"
            lines.append(f"attribute: name={attribute.name!r}{default}")
        for node in function:
            lines += self._node(node)
        lines += [f"output: name={value.name!r}" for value in function.outputs]
        yield from _indent(lines)

    def _node(self, node: ir.Node) -> Iterator[str]:
        name = qualified(node.domain, node.op_type)
        name += f":{node.overload}" if node.overload else ""
        inner: list[tuple[str, ir.Graph]] = []
        written = [_name(value) for value in node.inputs]
        for attribute in node.attributes.values():
            if (graphs := subgraphs(attribute)) is None:
                written.append(f"{attribute.name}={attribute_text(attribute)}")
            else:
                inner += graphs
        where = node.metadata_props.get("source", "") if self.source else ""
        results = ", ".join(_name(value) for value in node.outputs)
        yield f"{name}({', '.join(written)}) -> {results}{f'  # {where}' if where else ''}"
        for label, graph in inner:
            yield from _indent([f"{label}:", *_indent(self._graph(graph))])


def _indent(lines: Iterable[str]) -> Iterator[str]:
    return (f"  {line}" for line in lines)


def _opsets(opsets: dict[str, int]) -> Iterator[str]:
    return (f"opset: domain={domain!r} version={v}" for domain, v in sorted(opsets.items()))


def _name(value: ir.Value | None) -> str:
    """The name of a value; an optional one that is left out is an empty text."""
    return (value.name if value is not None else None) or "''"


def _value(role: str, value: ir.Value) -> str:
    shape = "?" if value.shape is None else str(shape_list(value.shape))
    return f"{role}: name={value.name!r} type={type_text(value)} shape={shape}"


def type_text(value: ir.Value) -> str:
    """The type as numpy spells it, within ``sequence()`` or ``optional()`` as needed."""
    if value.type is None or value.dtype is None:
        return "?"
    text = _dtype_text(value.dtype)
    nested: Any = value.type
    wrappers: list[str] = []
    while not isinstance(nested, ir.TensorType | ir.SparseTensorType):
        wrappers.append(type(nested).__name__.removesuffix("Type").lower())
        nested = nested.elem_type
    if isinstance(nested, ir.SparseTensorType):
        wrappers.append("sparse")
    for wrapper in reversed(wrappers):
        text = f"{wrapper}({text})"
    return text


def shape_list(shape: ir.Shape | Iterable[Any]) -> list[int | str]:
    """Sizes and names of sizes; ``?`` for what has neither."""
    return [d if isinstance(d, int) else (d.value or "?") for d in shape]


def _dtype_text(dtype: ir.DataType) -> str:
    # numpy has the names that torch uses, except for text.
    return "string" if dtype == ir.DataType.STRING else dtype.numpy().name


def _tensor_line(name: str, tensor: ir.TensorProtocol) -> str:
    shape = tuple(shape_list(tensor.shape))
    values = f" -- {text}" if (text := tensor_text(tensor)) else ""
    return f"name={name!r} type={_dtype_text(tensor.dtype)} shape={shape}{values}"


def tensor_text(tensor: ir.TensorProtocol) -> str:
    """The values of a small tensor as ``array([1., 2.])``, an empty text for others."""
    if tensor.size > SMALL:
        return ""
    try:
        array = tensor.numpy()
    except (OSError, ValueError):
        return "array(?)"  # a model is looked at without the file of its weights, or a part, too
    values = np.array2string(array, separator=", ", max_line_width=10_000, threshold=SMALL + 1)
    return f"array({' '.join(values.split())})"


def subgraphs(attribute: ir.Attr) -> list[tuple[str, ir.Graph]] | None:
    """The graphs in an attribute, with what they are called; None for one that has none."""
    if attribute.is_ref():
        return None
    if attribute.type == ir.AttributeType.GRAPH:
        return [(attribute.name, attribute.as_graph())]
    if attribute.type == ir.AttributeType.GRAPHS:
        return [(f"{attribute.name}[{i}]", g) for i, g in enumerate(attribute.as_graphs())]
    return None


def attribute_text(attribute: ir.Attr) -> str:
    """The value of an attribute on one line."""
    if attribute.is_ref():
        return f"@{attribute.ref_attr_name}"
    value = attribute.value
    match attribute.type:
        case ir.AttributeType.INT if attribute.name in _ELEMENT_TYPES:
            return _element_type(int(value))
        case ir.AttributeType.TENSOR:
            shape = tuple(shape_list(value.shape))
            return tensor_text(value) or f"{_dtype_text(value.dtype)}{shape}"
        case ir.AttributeType.FLOAT:
            return f"{value:g}"
        case ir.AttributeType.FLOATS:
            return _list([f"{v:g}" for v in value])
        case ir.AttributeType.STRING:
            return _quoted(value)
        case ir.AttributeType.STRINGS:
            return _list([_quoted(v) for v in value])
        case ir.AttributeType.INTS:
            return _list([str(v) for v in value])
        case ir.AttributeType.GRAPH | ir.AttributeType.GRAPHS:
            return "graph"
    return str(value)


def _element_type(number: int) -> str:
    try:
        return ir.DataType(number).name
    except ValueError:  # a domain of its own may mean something else
        return str(number)


def _quoted(text: str) -> str:
    return repr(text if len(text) <= LONG else f"{text[:LONG]}...")


def _list(items: Sequence[str]) -> str:
    return f"[{', '.join(items[:SMALL])}{', ...' if len(items) > SMALL else ''}]"
