"""What torch's attention reads: rotary embedding by our kernel, heads that queries share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from dort_rewriter.kernels.operators import OWN_DOMAIN, TORCH_ATTENTION, TORCH_FLASH, own_roots
from dort_rewriter.optimize.patterns.base import Match, Refusal, Rule
from dort_rewriter.optimize.patterns.recognize.attention import (
    is_for_all_heads,
    shared_heads,
    without_repeats,
)
from dort_rewriter.optimize.patterns.recognize.operands import NARROW
from dort_rewriter.optimize.patterns.recognize.rotary import find_turn
from dort_rewriter.optimize.view import GraphView, operator
from dort_rewriter.signature import inverse_order


class Rotary(Rule):
    """``x * cos + Concat(-x[h:], x[:h]) * sin -> Rotary(x, cos, sin)``   h half the last size;
    ``x * cos + Concat(u[h:], -u[:h]) -> Rotary<gradient=1>(x, cos, sin)``   with u = x * sin.
    Of 16-bit types the products are rounded; x may have been cast from one."""

    roots = ("Add",)
    reads = ("Mul", "Cast", "Concat")

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        found = find_turn(node, graph)
        if found is None or any(_is_read_more(v, uses) for v, uses in found.inside):
            return None
        x, cos, sin, gradient = found.x, found.cos, found.sin, int(found.is_gradient)
        made = node.outputs[0]
        if not graph.same_shape(x, made):
            return Refusal("the result has another shape than x", graph.dims(x))
        sizes = [(graph.dims(v) or (None,))[-1] for v in (x, cos, sin)]
        if not isinstance(sizes[0], int) or set(sizes) != {sizes[0]}:
            return Refusal("cos and sin have another last size than x", sizes)
        how: dict[str, Any] = {"domain": OWN_DOMAIN, "gradient": gradient}
        if made.dtype in NARROW:
            how["rounding"] = int(made.dtype)
        if not graph.runs("Rotary", [x, cos, sin], outputs=[made], **how):
            return Refusal("no kernel", x.dtype)
        return Match([made], lambda op: op.call("Rotary", x, cos, sin, **how))


def _is_read_more(value: ir.Value, uses: int) -> bool:
    return value.is_graph_output() or len(value.uses()) > uses


_ATTENTION = frozenset(own_roots(TORCH_ATTENTION))


class TransposeRotary(Rule):
    """``Rotary(Transpose(x, perm), cos, sin) -> Transpose(Rotary(x, cos', sin'), perm)``   where
    torch's attention reads it, and else Transposes; the last axis stays the last, and of cos and
    sin only sizes of 1 move."""

    roots = (f"{OWN_DOMAIN}::Rotary",)
    reads = ("Transpose",)
    lowers = "Transposes before Rotary that attention reads"

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        result = node.outputs[0]
        before = graph.producer(node.inputs[0], "Transpose")
        readers = graph.consumers(result)
        if before is None or result.is_graph_output():
            return None
        if not any(operator(n) in _ATTENTION for n in readers):
            return None
        if any(operator(n) not in _ATTENTION and operator(n) != "Transpose" for n in readers):
            return Refusal("others read it too", result.name)
        perm = graph.order(before)
        if perm is None or not _may_move(node, inverse_order(perm), graph):
            return Refusal("more than heads are moved", perm)
        x = before.inputs[0]
        return Match(
            [result],
            lambda op: op.Transpose(_turned(op, node, x, inverse_order(perm), graph), perm=perm),
        )


def _may_move(rotary: ir.Node, perm: Sequence[int], graph: GraphView) -> bool:
    """Whether cos and sin follow another order of x without a copy."""
    rank = len(perm)
    if perm[-1] != rank - 1:
        return False
    for value in rotary.inputs[1:]:
        dims = graph.dims(value)
        if dims is None or len(dims) != rank:
            return False
        moved = [d for d in perm if dims[d] != 1]
        if moved != sorted(moved):
            return False
    return True


def _turned(
    op: Any, rotary: ir.Node, x: ir.Value | None, perm: Sequence[int], graph: GraphView
) -> ir.Value:
    """The same Rotary of x in another order of its axes."""
    cos, sin = (op.Transpose(v, perm=list(perm)) for v in rotary.inputs[1:])
    result: ir.Value = op.again(rotary, x, cos, sin)
    result.type = rotary.outputs[0].type
    dims = graph.dims(rotary.outputs[0])
    if dims is not None:
        result.shape = ir.Shape([dims[d] for d in perm])
    return result


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
