"""Convolutions for which ONNX Runtime makes a product of matrices of each channel."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from dort_rewriter.graph.schemas import OWN_DOMAIN
from dort_rewriter.graph.writer import Writer
from dort_rewriter.optimize.patterns.base import Match, Refusal, Rule
from dort_rewriter.optimize.view import GraphView

__all__ = ["DepthwiseConv"]


class DepthwiseConv(Rule):
    """``Conv(x, w, b) -> DepthwiseConv(x, w, b)``   of two axes, each channel having a filter
    of its own that is no constant: constants get a layout of ONNX Runtime's own.
    """

    roots = ("Conv",)
    lowers = "convolutions of onnxruntime"

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        """What to replace."""
        x, weight, bias = (*node.inputs, None)[:3]
        dims, filters = graph.dims(x), graph.static(weight)
        if x is None or weight is None or not dims or not filters or len(dims) != 4:
            return None
        channels = graph.attribute(node, "group", 1)
        if channels == 1 or filters[:2] != (channels, 1):
            return None
        if graph.constant(weight) is not None:
            return Refusal("the filters are constants", weight.name)
        if 0 in (*dims, *filters):
            return Refusal("there is nothing to convolve", (dims, filters))
        windows = _windows(node, graph, filters[2:])
        if windows is None:
            return Refusal(
                "the padding is not the same at both ends", graph.attribute(node, "pads")
            )
        read = [x, weight, weight if bias is None else bias]
        if not graph.runs("DepthwiseConv", read, domain=OWN_DOMAIN, windows=windows):
            return Refusal("no kernel", x.dtype)

        def write(op: Writer) -> ir.Value:
            added = op.constant([0.0] * channels, ir.DataType.FLOAT) if bias is None else bias
            result: ir.Value = op.call(
                "DepthwiseConv", x, weight, added, domain=OWN_DOMAIN, windows=windows
            )
            return result

        return Match([node.outputs[0]], write)


def _windows(node: ir.Node, graph: GraphView, kernel: Sequence[int]) -> list[int] | None:
    """Kernel, stride, padding, dilation and whether windows may be cut off, by axis."""
    pads = graph.attribute(node, "pads", [0, 0, 0, 0])
    if graph.attribute(node, "auto_pad", "NOTSET") != "NOTSET" or pads[:2] != pads[2:]:
        return None
    strides, dilations = (graph.attribute(node, n, [1, 1]) for n in ("strides", "dilations"))
    axes = zip(kernel, strides, pads[:2], dilations, strict=True)
    return [int(n) for axis in axes for n in (*axis, 0)]
