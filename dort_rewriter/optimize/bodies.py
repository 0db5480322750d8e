"""What stands inside of a node: the bodies of If, Loop and Scan."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

__all__ = ["nodes_inside", "values_read"]


def nodes_inside(node: ir.Node) -> Iterator[ir.Node]:
    """Yield the nodes of the subgraphs of a node, and of those inside of them."""
    for graph in _bodies(node):
        for inner in graph:
            yield inner
            yield from nodes_inside(inner)


def values_read(node: ir.Node) -> Iterator[ir.Value]:
    """Yield what a node reads, in its subgraphs too."""
    yield from (v for v in node.inputs if v is not None)
    for graph in _bodies(node):
        for inner in graph:
            yield from values_read(inner)
        yield from graph.outputs


def _bodies(node: ir.Node) -> Iterator[ir.Graph]:
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            yield attribute.as_graph()
        elif attribute.type == ir.AttributeType.GRAPHS:
            yield from attribute.as_graphs()
