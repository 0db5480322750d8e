"""Nodes that compute the same thing twice."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from dort_rewriter.optimize.patterns.base import GraphPass
from dort_rewriter.optimize.view import GraphView

__all__ = ["CommonSubexpressions"]

_RANDOM = frozenset(
    {"Dropout", "Bernoulli", "Multinomial"}
    | {f"Random{kind}{like}" for kind in ("Normal", "Uniform") for like in ("", "Like")}
)


class CommonSubexpressions(GraphPass):
    """Two nodes of one operator with equal inputs and attributes become one, random ones never.

    NOTE: the pass of onnx_ir merges two training Dropouts with equal inputs.
    """

    def run(self, graph: GraphView) -> int:
        """Merge the nodes of the main graph."""
        seen: dict[Any, ir.Node] = {}
        merged = 0
        for node in list(graph.graph):
            if (key := _key(node)) is None:
                continue
            first = seen.setdefault(key, node)
            if first is not node and _can_merge(first, node):
                for kept, gone in zip(first.outputs, node.outputs, strict=True):
                    gone.replace_all_uses_with(kept)
                graph.graph.remove(node, safe=True)
                merged += 1
        return merged


def _can_merge(first: ir.Node, second: ir.Node) -> bool:
    """Whether the model does not return the second: an output needs its own name."""
    if any(v.is_graph_output() for v in second.outputs):
        return False
    types = [(a.dtype, b.dtype) for a, b in zip(first.outputs, second.outputs, strict=True)]
    return all(a == b for a, b in types if a is not None and b is not None)


def _key(node: ir.Node) -> Any:
    if node.op_type in _RANDOM:
        return None
    attributes = []
    for name, attribute in sorted(node.attributes.items()):
        if attribute.is_ref() or attribute.type in (
            ir.AttributeType.GRAPH,
            ir.AttributeType.GRAPHS,
        ):
            return None
        value = attribute.value
        if attribute.type == ir.AttributeType.TENSOR:
            value = (value.dtype, tuple(value.shape), value.tobytes())
        attributes.append((name, tuple(value) if isinstance(value, list) else value))
    return (
        node.domain,
        node.op_type,
        node.overload,
        tuple(map(id, node.inputs)),
        tuple(attributes),
        len(node.outputs),
    )
