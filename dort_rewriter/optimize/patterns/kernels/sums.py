"""Sums and means over the first or last axes, which our kernel adds up in vectors.

Those of 16-bit numbers are added up in float32 and rounded once, as torch's are; also over axes in
between, of which onnxruntime's kernel knows float32 only."""

from __future__ import annotations

import onnx_ir as ir

from dort_rewriter.graph.writer import Writer
from dort_rewriter.kernels.operators import OWN_DOMAIN
from dort_rewriter.optimize.patterns.base import Match, Rule
from dort_rewriter.optimize.patterns.recognize.casts import NARROW
from dort_rewriter.optimize.view import GraphView

__all__ = ["Sums"]

_TYPES = frozenset({ir.DataType.FLOAT, *NARROW})


class Sums(Rule):
    """``ReduceSum(x) -> Sum(x)``   over leading and trailing axes of float32, float16 or bfloat16,
    ReduceMean and ReduceSumSquare; of 16-bit numbers over other axes side by side too.
    ``ReduceL2(x) -> Sqrt(Sum(x))`` of squares, of float32.

    NOTE: late, since norms are recognized by their means.
    """

    roots = ("ReduceSum", "ReduceMean", "ReduceSumSquare", "ReduceL2")
    lowers = "reductions of onnxruntime"
    late = True

    def match(self, node: ir.Node, graph: GraphView) -> Match | None:
        """What to replace."""
        if (ends := _ends(node, graph)) is None:
            return None
        attributes = {
            **ends,
            "keepdims": graph.attribute(node, "keepdims", 1),
            "mean": int(node.op_type == "ReduceMean"),
        }
        if node.op_type in ("ReduceSumSquare", "ReduceL2"):
            attributes["square"] = 1
        x, is_norm = node.inputs[0], node.op_type == "ReduceL2"
        if is_norm and (x is None or x.dtype != ir.DataType.FLOAT):
            return None  # the sum would be rounded before its root is

        def write(op: Writer) -> ir.Value:
            total = op.call("Sum", x, domain=OWN_DOMAIN, **attributes)
            result: ir.Value = op.Sqrt(total) if is_norm else total
            return result

        return Match([node.outputs[0]], write)


def _ends(node: ir.Node, graph: GraphView) -> dict[str, int] | None:
    """How many axes are reduced at each end, when none is between, or else which."""
    x = node.inputs[0]
    dims = graph.dims(x)
    if x is None or not dims or x.dtype not in _TYPES or 0 in dims:
        return None
    rank = len(dims)
    axes = graph.axes(node, rank)
    if axes is None or (not axes and graph.attribute(node, "noop_with_empty_axes", 0)):
        return None
    reduced = set(axes or range(rank))
    leading = next((i for i in range(rank) if i not in reduced), rank)
    trailing = next((i for i in range(rank - leading) if rank - 1 - i not in reduced), 0)
    ends = {"leading": leading, "trailing": trailing}
    if len(reduced) != leading + trailing:
        first = min(reduced)
        if x.dtype not in NARROW or max(reduced) - first >= len(reduced):
            return None
        ends = {"before": first, "leading": len(reduced)}
    return ends if graph.runs("Sum", [x], outputs=[x], domain=OWN_DOMAIN) else None
