"""Heads of keys and values that serve several queries, for torch's attention."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from dort_rewriter.kernels.operators import OWN_DOMAIN, TORCH_FLASH
from dort_rewriter.optimize.patterns.base import Match, Refusal, Rule
from dort_rewriter.optimize.patterns.recognize.heads import (
    is_for_all_heads,
    shared_heads,
    without_repeats,
)
from dort_rewriter.optimize.view import GraphView

__all__ = ["TorchSharedHeads"]

_HEADS_LAST = [0, 2, 1, 3]
"""An order of the result: where each head has one query, its memory is the same."""


class TorchSharedHeads(Rule):
    """``attention(q, repeated(k), repeated(v), mask)`` of one query for each head: the queries of
    a group are rows over one head, and keys and values are read where they are.

    A step of a decoder copied its whole cache for each group.
    """

    roots = (f"{OWN_DOMAIN}::{TORCH_FLASH}",)
    lowers = "bytes of keys and values"

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        """What to replace."""
        attributes: dict[str, Any] = {k: a.value for k, a in node.attributes.items()}
        query, key, value, *masks = node.inputs
        sources = None if key is None or value is None else shared_heads([key, value], graph)
        if sources is None:
            return None
        order = list(attributes.pop("order0", ()))
        dims, shared = graph.dims(query), graph.dims(sources[0])
        if attributes.keys() - {"is_causal", "scale"} or order not in ([], _HEADS_LAST):
            return Refusal("the inputs or results are transposed", sorted(attributes))
        if dims is None or shared is None or dims[2] != 1 or attributes.get("is_causal"):
            return Refusal("there are several queries for a head", dims)
        sums = node.outputs[1]
        if sums.is_graph_output() or graph.consumers(sums):
            return Refusal("the sums are read", sums.name)
        if any(mask is not None and not is_for_all_heads(mask, graph) for mask in masks):
            return Refusal("the mask is not the same for all heads", masks[0])
        heads, groups, size = dims[1], shared[1], dims[3]
        if not (isinstance(heads, int) and isinstance(groups, int) and isinstance(size, int)):
            return Refusal("the heads have no known size", dims)

        def build(op: Any) -> ir.Value:
            rows = op.Reshape(query, [0, groups, heads // groups, size])
            given = [without_repeats(op, source, graph) for source in sources]
            made, sums = op.call(
                TORCH_FLASH, rows, *given, *masks, domain=OWN_DOMAIN, outputs=2, **attributes
            )
            made.type, sums.type = (result.type for result in node.outputs)
            return op.Reshape(made, [0, 1, heads, size] if order else [0, heads, 1, size])

        return Match([node.outputs[0]], build)
