"""Slices of one tensor that together take all of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import onnx_ir as ir

from dort_rewriter.optimize.emitter import Emitter
from dort_rewriter.optimize.patterns.base import GraphPass
from dort_rewriter.optimize.patterns.recognize.pieces import Piece, slice_of
from dort_rewriter.optimize.replacing import take_place
from dort_rewriter.optimize.view import GraphView

__all__ = ["SlicesSplit"]


class SlicesSplit(GraphPass):
    """``Slice(x, 0, 4), Slice(x, 4, 8) -> Split(x)``   when they take all of an axis, once.

    NOTE: it comes late, so that rules which recognize rotary embeddings see their Slices first.
    """

    late = True

    def run(self, graph: GraphView) -> int:
        """Replace the Slices of each tensor that they cover."""
        groups: dict[tuple[ir.Value, int], list[tuple[Piece, ir.Node]]] = defaultdict(list)
        for node in graph.graph:
            piece = slice_of(node, graph)
            if piece is not None and not node.outputs[0].is_graph_output():
                groups[piece.source, piece.axis].append((piece, node))
        emitter = None
        done = 0
        for (source, axis), found in groups.items():
            dims = graph.dims(source)
            ordered = sorted(found, key=lambda pair: pair[0].start)
            if dims is None or not _covers([piece for piece, _ in ordered], dims[axis]):
                continue
            emitter = emitter or Emitter(graph.graph, graph.opset)
            _split(graph.graph, emitter, [n for _, n in found], ordered)
            done += 1
        return done


def _covers(pieces: Sequence[Piece], size: object) -> bool:
    """Whether pieces, in order, take each element once."""
    ends = [0, *(p.end for p in pieces)]
    starts = [*(p.start for p in pieces), size]
    return len(pieces) > 1 and ends == starts and all(p.start < p.end for p in pieces)


def _split(
    graph: ir.Graph,
    emitter: Emitter,
    nodes: Sequence[ir.Node],
    ordered: Sequence[tuple[Piece, ir.Node]],
) -> None:
    """Put a Split where the first of the Slices stands.

    NOTE: it reads what the Slices read by now: their source may be a Slice that was replaced.
    """
    emitter.begin({**nodes[0].metadata_props, "rule": SlicesSplit.__name__})
    sizes = [piece.end - piece.start for piece, _ in ordered]
    parts = emitter.Split(nodes[0].inputs[0], sizes, axis=ordered[0][0].axis)
    graph.insert_before(nodes[0], emitter.nodes)
    for part, (_, node) in zip(parts, ordered, strict=True):
        take_place(node.outputs[0], part)
    graph.remove(nodes, safe=True)
