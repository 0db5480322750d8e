"""The place of nodes that nobody but the caller reads.

NOTE: onnxruntime does not run a model in the order it is written. It walks back from the nodes
without readers, the last written one first, so that the gradients of weights, written as soon as
they can be computed, all run at the end of the backward pass: what they read has left the caches
by then, and is kept in memory all that time.
"""

from __future__ import annotations

import onnx_ir as ir

from dort_rewriter.optimize.patterns.base import GraphPass
from dort_rewriter.optimize.view import GraphView

__all__ = ["LeavesLast"]


class LeavesLast(GraphPass):
    """Nodes that no node reads are written last, in the reverse of the order they can run in."""

    def run(self, graph: GraphView) -> int:
        """Move them, and return how many are not where they were."""
        nodes = list(graph.graph)
        leaves = [node for node in nodes if not any(v.uses() for v in node.outputs)]
        if len(leaves) < 2:
            return 0
        moved = set(leaves)
        inner = [node for node in nodes if node not in moved]
        position = {node: i for i, node in enumerate(inner)}
        leaves.sort(key=lambda leaf: _ready(leaf, position), reverse=True)
        wanted = [*inner, *leaves]
        count = sum(a is not b for a, b in zip(nodes, wanted, strict=True))
        if count:
            graph.graph.remove(leaves)
            graph.graph.extend(leaves)
        return count


def _ready(node: ir.Node, position: dict[ir.Node, int]) -> int:
    """The position of the last node it waits for."""
    waits = [v.producer() for v in node.inputs if v is not None]
    waits += [v.producer() for graph in _subgraphs(node) for n in graph.all_nodes()
              for v in n.inputs if v is not None]  # fmt: skip
    return max((position[p] for p in waits if p in position), default=-1)


def _subgraphs(node: ir.Node) -> list[ir.Graph]:
    return [a.as_graph() for a in node.attributes.values() if a.type is ir.AttributeType.GRAPH]
