"""Transposes between rotary embeddings and torch's attention, which reads heads in any order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from dort_rewriter.kernels.operators import OWN_DOMAIN, TORCH_ATTENTION, own_roots
from dort_rewriter.optimize.patterns.base import Match, Refusal, Rule
from dort_rewriter.optimize.view import GraphView, operator
from dort_rewriter.signature import inverse_order

__all__ = ["RotaryTranspose", "TransposeRotary"]

_ATTENTION = frozenset(own_roots(TORCH_ATTENTION))


class TransposeRotary(Rule):
    """``Rotary(Transpose(x, perm), cos, sin) -> Transpose(Rotary(x, cos', sin'), perm)``   where
    torch's attention reads it, and else Transposes; the last axis stays the last, and of cos and
    sin only sizes of 1 move."""

    roots = (f"{OWN_DOMAIN}::Rotary",)
    reads = ("Transpose",)
    lowers = "Transposes before Rotary that attention reads"

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        """What to replace."""
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


class RotaryTranspose(Rule):
    """``Transpose(Rotary(x, cos, sin), perm) -> Rotary(Transpose(x, perm), cos', sin')``   where
    torch's attention gives x: gradients, on the way back."""

    roots = ("Transpose",)
    reads = (f"{OWN_DOMAIN}::Rotary",)
    lowers = "Transposes behind Rotary of what attention gives"

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        """What to replace."""
        rotary = graph.producer(node.inputs[0], f"{OWN_DOMAIN}::Rotary")
        if rotary is None or rotary.inputs[0] is None:
            return None
        x = rotary.inputs[0]
        given = x.producer()
        if given is None or operator(given) not in _ATTENTION:
            return None
        if not (graph.used_once(x) and graph.used_once(rotary.outputs[0])):
            return Refusal("others read it too", x.name)
        perm = graph.order(node)
        if perm is None or not _may_move(rotary, perm, graph):
            return Refusal("more than heads are moved", perm)

        def build(op: Any) -> ir.Value:
            return _turned(op, rotary, op.Transpose(x, perm=perm), perm, graph)

        return Match([node.outputs[0]], build)


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
    attributes = {name: a.value for name, a in rotary.attributes.items()}
    cos, sin = (op.Transpose(v, perm=list(perm)) for v in rotary.inputs[1:])
    result: ir.Value = op.call("Rotary", x, cos, sin, domain=OWN_DOMAIN, **attributes)
    result.type = rotary.outputs[0].type
    dims = graph.dims(rotary.outputs[0])
    if dims is not None:
        result.shape = ir.Shape([dims[d] for d in perm])
    return result
