"""Models, and parts of them, in any of their forms, as objects of ``onnx_ir``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import onnx
import onnx_ir as ir

from dort_rewriter.errors import OptionError
from dort_rewriter.graph.schemas import qualified
from dort_rewriter.runtime.model_files import from_message, read_model

AnyModel: TypeAlias = onnx.ModelProto | ir.Model | bytes | str | Path
"""A model, its bytes, or the path of its file."""


def load_model(model: Any) -> ir.Model:
    """The model; an ``onnx_ir.Model`` as it is, weights in files stay there until read.

    Raises :class:`OptionError` for what is no model.
    """
    if isinstance(model, ir.Model):
        return model
    if not isinstance(model, bytes | str | Path | onnx.ModelProto):
        raise OptionError(
            "Expected an ONNX model, its bytes or the path of its file, not "
            f"{type(model).__name__}."
        )
    named = isinstance(model, str | Path)
    source = repr(str(model)) if named else f"the {type(model).__name__}"
    try:
        return read_model(model) if isinstance(model, str | Path) else from_message(model)
    except (OSError, ValueError) as error:
        raise OptionError(f"No ONNX model can be read from {source}: {error}.") from error


def count_nodes(model: ir.Model) -> dict[str, int]:
    """The number of nodes by type, those of subgraphs too, the most frequent first."""
    return by_count(qualified(n.domain, n.op_type) for n in model.graph.all_nodes())


def by_count(names: Iterable[str]) -> dict[str, int]:
    """How often there is each name, the most frequent first."""
    return dict(sorted(Counter(names).items(), key=lambda item: (-item[1], item[0])))


def load_part(model: Any) -> Any:
    """A model or a part of one as its counterpart of ``onnx_ir``; others as they are."""
    if isinstance(model, bytes | str | Path | onnx.ModelProto):
        return load_model(model)
    if isinstance(model, onnx.NodeProto):
        return _within_scope(model).node(0)
    if isinstance(model, onnx.GraphProto):
        attribute = onnx.helper.make_attribute("graph", model)
        wrapper = onnx.NodeProto(op_type="Scope", attribute=[attribute])
        return _within_scope(wrapper).node(0).attributes["graph"].as_graph()
    if isinstance(model, onnx.ValueInfoProto):
        return ir.serde.deserialize_value_info_proto(model, None)
    if isinstance(model, onnx.FunctionProto | onnx.TensorProto | onnx.AttributeProto):
        return ir.from_proto(model)
    return model


def _within_scope(node: onnx.NodeProto) -> ir.Graph:
    """A graph that holds the node, and knows the names that come from around it."""
    names = dict.fromkeys(_names_read([node]))
    return ir.serde.deserialize_graph(
        onnx.GraphProto(
            name="scope", node=[node], input=[onnx.ValueInfoProto(name=name) for name in names]
        )
    )


def _names_read(nodes: Iterable[onnx.NodeProto]) -> Iterator[str]:
    for node in nodes:
        yield from (name for name in node.input if name)
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                yield from (value.name for value in graph.output)
                yield from _names_read(graph.node)
