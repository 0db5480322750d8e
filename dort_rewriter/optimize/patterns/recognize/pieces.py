"""Ranges of one axis that a Slice takes."""

from __future__ import annotations

from typing import NamedTuple

import onnx_ir as ir

from dort_rewriter.optimize.view import GraphView

__all__ = ["Piece", "slice_of"]


class Piece(NamedTuple):
    """What a Slice of one axis takes, by steps of 1."""

    source: ir.Value
    axis: int
    start: int
    end: int
    """Not larger than the size of the axis when that is known."""


def slice_of(node: ir.Node | None, graph: GraphView) -> Piece | None:
    """What a Slice takes, when it is a range of one axis and its bounds are constants."""
    if node is None or node.op_type != "Slice" or node.domain or len(node.inputs) < 3:
        return None
    source = node.inputs[0]
    rank = graph.rank(source)
    numbers = [graph.integers(v) for v in node.inputs[1:]]
    if source is None or rank is None or any(n is None or len(n) != 1 for n in numbers):
        return None
    start, end, axis, step = [*(n[0] for n in numbers if n), *([0, 1][len(numbers) - 4 :])][:4]
    size = (graph.dims(source) or ())[axis % rank]
    if isinstance(size, int):
        start, end = (min(max(b + size if b < 0 else b, 0), size) for b in (start, end))
    if step != 1 or start < 0 or end < start:
        return None
    return Piece(source, axis % rank, start, end)
