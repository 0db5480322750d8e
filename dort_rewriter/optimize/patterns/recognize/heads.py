"""Heads of keys and values that are repeated for groups of queries."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from dort_rewriter.graph.shapes import same
from dort_rewriter.graph.writer import Writer
from dort_rewriter.optimize.view import GraphView

__all__ = ["find_repeated_heads", "is_for_all_heads", "shared_heads", "without_repeats"]


def find_repeated_heads(value: ir.Value, graph: GraphView) -> ir.Value | None:
    """x of ``Reshape(Expand(x))``, five axes ``batch, heads, 1, positions, size``."""
    merge = graph.producer(value, "Reshape")
    expand = None if merge is None else graph.producer(merge.inputs[0], "Expand")
    if expand is None or (source := expand.inputs[0]) is None:
        return None
    single, many, whole = (graph.dims(v) for v in (source, expand.outputs[0], value))
    if single is None or many is None or whole is None:
        return None
    if (len(single), len(many), len(whole)) != (5, 5, 4):
        return None
    heads, groups = single[1], many[2]
    if not (isinstance(heads, int) and isinstance(groups, int)):
        return None
    batch, positions, size = single[0], single[3], single[4]
    expected = (
        (batch, heads, 1, positions, size),
        (batch, heads, groups, positions, size),
        (batch, heads * groups, positions, size),
    )
    fits = all(
        all(map(same, wanted, dims))
        for wanted, dims in zip(expected, (single, many, whole), strict=True)
    )
    return source if fits else None


def shared_heads(values: Sequence[ir.Value], graph: GraphView) -> list[ir.Value] | None:
    """Keys and values before their heads are repeated, alike for both, if they are."""
    found = [find_repeated_heads(value, graph) for value in values]
    sources = [source for source in found if source is not None]
    if len(sources) < len(values):
        return None
    heads = {(graph.dims(source) or (None, None))[1] for source in sources}
    return sources if len(heads) == 1 else None


def without_repeats(op: Writer, source: ir.Value, graph: GraphView) -> ir.Value:
    """Heads of five axes as four: without the third, along which they are to be repeated."""
    before = graph.producer(source, "Unsqueeze")
    if before is not None and graph.axes(before, 5) == [2] and before.inputs[0] is not None:
        return before.inputs[0]
    squeezed: ir.Value = op.Squeeze(source, [2])
    return squeezed


def is_for_all_heads(mask: ir.Value, graph: GraphView) -> bool:
    """Whether a mask or bias of one query is the same for each head."""
    dims = graph.dims(mask)
    return dims is not None and len(dims) <= 4 and all(size == 1 for size in dims[-3:-1])
