"""Indexing that takes everything, in order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from dort_rewriter.graph.shapes import Dim, same
from dort_rewriter.optimize.patterns.base import Match, Refusal, Rule
from dort_rewriter.optimize.patterns.standard.views import VIEWS, reshape_target
from dort_rewriter.optimize.view import GraphView

_LIMIT = 1 << 16
"""Elements above which a constant is not looked at."""


class GatherNDRange(Rule):
    """``x[arange(B)[:, None, None], arange(S)] -> Reshape(x)``   when the indices count the axes.

    The indices are a Concat of expanded Ranges, one for each axis of ``x``. Attention masks of
    transformers are built this way.
    """

    roots = ("GatherND",)
    lowers = "GatherND nodes"

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        x, indices = node.inputs
        dims, result = graph.dims(x), graph.dims(node.outputs[0])
        if x is None or dims is None or result is None or graph.attribute(node, "batch_dims", 0):
            return None
        axes = _axes(indices, result, graph)
        if axes is None or len(axes) != len(dims):
            return None
        counted = [a for a in axes if a is not None]
        if len(counted) < len(axes) or counted != sorted(set(counted)):
            return Refusal("the indices do not count the axes one after the other", axes)
        if not all(same(result[a], d) for a, d in zip(counted, dims, strict=True)):
            return Refusal("the indices do not count all of an axis", str(result))
        if any(d != 1 for i, d in enumerate(result) if i not in counted):
            return Refusal("the result repeats elements", str(result))
        if (target := reshape_target(dims, result)) is None:
            return Refusal("the shape cannot be written down", str(result))
        return Match([node.outputs[0]], lambda op: op.Reshape(x, target))


def _axes(
    indices: ir.Value | None, result: Sequence[Dim], graph: GraphView
) -> list[int | None] | None:
    """For each axis of the data the one of the result along which it is counted."""
    if indices is not None and indices.const_value is not None:
        array = graph.constant(indices, _LIMIT)
        if array is None or array.ndim != len(result) + 1:
            return None
        return [_counted_axis(array[..., i]) for i in range(array.shape[-1])]
    concat = graph.producer(indices, "Concat")
    if concat is None or graph.attribute(concat, "axis") not in (-1, len(result)):
        return None
    return [_structural_axis(part, len(result), graph) for part in concat.inputs]


def _counted_axis(array: np.ndarray[Any, Any]) -> int | None:
    """The axis along which an array counts 0, 1, 2..., the same everywhere else."""
    for axis, size in enumerate(array.shape):
        line = np.arange(size).reshape([-1 if i == axis else 1 for i in range(array.ndim)])
        if size > 1 and bool(np.all(array == line)):
            return axis
    return None


def _structural_axis(value: ir.Value | None, rank: int, graph: GraphView) -> int | None:
    """The axis of ``Unsqueeze(Expand(Unsqueeze(Range)), -1)``."""
    if value is not None and value.const_value is not None:
        array = graph.constant(value, _LIMIT)
        return None if array is None or array.ndim <= rank else _counted_axis(array[..., 0])
    outer = graph.producer(value, "Unsqueeze")
    if outer is None or graph.axes(outer, rank + 1) != [rank]:
        return None
    value = outer.inputs[0]
    if (expand := graph.producer(value, "Expand")) is not None:
        value = expand.inputs[0]
    dims = graph.dims(value)
    axes = [i for i, d in enumerate(dims or ()) if d != 1]
    while (view := graph.producer(value, *VIEWS)) is not None:
        value = view.inputs[0]
    if dims is None or len(axes) != 1 or not _is_range(value, graph):
        return None
    return axes[0] + rank - len(dims)


def _is_range(value: ir.Value | None, graph: GraphView) -> bool:
    """Whether the elements of a value are 0, 1, 2..."""
    if value is not None and value.const_value is not None:
        array = graph.constant(value, _LIMIT)
        return array is not None and bool(np.all(array.ravel() == np.arange(array.size)))
    node = graph.producer(value, "Range")
    return node is not None and [graph.scalar(node.inputs[i]) for i in (0, 2)] == [0, 1]
