"""Nodes that run one program on tensors of their own become one node: a step of an optimizer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import onnx_ir as ir

from dort_rewriter.graph.schemas import OWN_DOMAIN
from dort_rewriter.optimize.bodies import values_read
from dort_rewriter.optimize.patterns.base import GraphPass
from dort_rewriter.optimize.replacing import take_place
from dort_rewriter.optimize.view import GraphView

__all__ = ["ElementwiseLists"]

_MOST = 1024
"""Inputs of a node, or results; the kernel takes twice as many."""


class ElementwiseLists(GraphPass):
    """``Elementwise`` nodes of one program that do not read each other -> ``ElementwiseList``,
    when what they give is returned, or has no axes: a list waits for all that it reads."""

    late = True

    def run(self, graph: GraphView) -> int:
        """Join what can be joined, and return how many lists there are more."""
        groups: dict[Any, list[ir.Node]] = {}
        depths = _depths(graph.graph)
        for node in graph.graph:
            if _is_update(node):
                groups.setdefault((depths[node], *_program(node)), []).append(node)
        found = [part for group in groups.values() for part in _parts(group) if len(part) > 1]
        for part in found:
            _join(graph.graph, part)
        if found:
            graph.graph.sort()
        return len(found)


def _depths(graph: ir.Graph) -> dict[ir.Node, int]:
    """How many nodes stand before each on the longest way: those of one depth are apart."""
    depths: dict[ir.Node, int] = {}
    for node in graph:
        read = [v.producer() for v in values_read(node)]
        depths[node] = 1 + max((depths[p] for p in read if p in depths), default=0)
    return depths


def _is_update(node: ir.Node) -> bool:
    if (node.domain, node.op_type) != (OWN_DOMAIN, "Elementwise"):
        return False
    return all(v.is_graph_output() or (v.shape is not None and not v.shape) for v in node.outputs)


def _program(node: ir.Node) -> tuple[Any, ...]:
    """What has to be equal."""
    types = [
        tuple(None if v is None else v.dtype for v in values)
        for values in (node.inputs, node.outputs)
    ]
    code = (tuple(node.attributes[n].as_ints()) for n in ("program", "results"))
    return *types, *code


def _parts(group: Sequence[ir.Node]) -> Iterator[Sequence[ir.Node]]:
    most = _MOST // max(len(group[0].inputs), len(group[0].outputs))
    for first in range(0, len(group), most):
        yield group[first : first + most]


def _join(graph: ir.Graph, nodes: Sequence[ir.Node]) -> None:
    first = nodes[0]
    outputs = [v for n in nodes for v in n.outputs]
    joined = ir.node(
        "ElementwiseList",
        [v for n in nodes for v in n.inputs],
        {
            "program": first.attributes["program"].as_ints(),
            "results": first.attributes["results"].as_ints(),
            "count": len(nodes),
        },
        domain=OWN_DOMAIN,
        num_outputs=len(outputs),
        metadata_props={**first.metadata_props, "rule": ElementwiseLists.__name__},
    )
    graph.insert_after(nodes[-1], joined)  # the whole graph is sorted in the end
    for old, new in zip(outputs, joined.outputs, strict=True):
        take_place(old, new)
    graph.remove(reversed(nodes), safe=True)
