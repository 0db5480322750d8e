"""Sums and means over the first or last axes, which our kernel adds up in vectors."""

from __future__ import annotations

import onnx_ir as ir

from dort_rewriter.graph.schemas import OWN_DOMAIN
from dort_rewriter.optimize.patterns.base import GraphPass
from dort_rewriter.optimize.view import GraphView

__all__ = ["Sums"]


class Sums(GraphPass):
    """``ReduceSum(x) -> Sum(x)``   over leading and trailing axes of float32, and ReduceMean.

    NOTE: late, since norms are recognized by their means.
    """

    late = True

    def run(self, graph: GraphView) -> int:
        """Replace what can be replaced, and return how many nodes there were."""
        found = [(n, ends) for n in graph.graph if (ends := _ends(n, graph)) is not None]
        for node, (leading, trailing) in found:
            _replace(graph, node, leading, trailing)
        if found:
            graph.graph.opset_imports.setdefault(OWN_DOMAIN, 1)
        return len(found)


def _ends(node: ir.Node, graph: GraphView) -> tuple[int, int] | None:
    """Return how many axes are reduced at each end, when none is between."""
    if node.domain or node.op_type not in ("ReduceSum", "ReduceMean"):
        return None
    x = node.inputs[0]
    dims = graph.dims(x)
    if x is None or not dims or x.dtype != ir.DataType.FLOAT or 0 in dims:
        return None
    rank = len(dims)
    axes = graph.axes(node, rank)
    if axes is None or (not axes and graph.attribute(node, "noop_with_empty_axes", 0)):
        return None
    reduced = set(axes or range(rank))
    leading = next((i for i in range(rank) if i not in reduced), rank)
    trailing = next((i for i in range(rank - leading) if rank - 1 - i not in reduced), 0)
    if len(reduced) != leading + trailing:
        return None
    return (leading, trailing) if graph.runs("Sum", [x], domain=OWN_DOMAIN) else None


def _replace(graph: GraphView, old: ir.Node, leading: int, trailing: int) -> None:
    attributes = {
        "leading": leading,
        "trailing": trailing,
        "keepdims": graph.attribute(old, "keepdims", 1),
        "mean": int(old.op_type == "ReduceMean"),
    }
    node = ir.node(
        "Sum",
        [old.inputs[0]],
        attributes,
        domain=OWN_DOMAIN,
        metadata_props={**old.metadata_props, "rule": Sums.__name__},
    )
    graph.graph.insert_after(old, node)
    before, after = old.outputs[0], node.outputs[0]
    after.type, after.shape = before.type, before.shape
    before.replace_all_uses_with(after, replace_graph_outputs=True)
    name, before.name = before.name, f"{before.name}_replaced"
    after.name = name
    graph.graph.remove(old, safe=True)
