"""Rotary embeddings as models write them, and as autograd differentiates that."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from dort_rewriter.kernels.operators import OWN_DOMAIN
from dort_rewriter.optimize.patterns.base import Match, Refusal, Rule
from dort_rewriter.optimize.patterns.recognize.casts import NARROW
from dort_rewriter.optimize.patterns.recognize.rotary import find_turn
from dort_rewriter.optimize.view import GraphView

__all__ = ["Rotary"]


class Rotary(Rule):
    """``x * cos + Concat(-x[h:], x[:h]) * sin -> Rotary(x, cos, sin)``   h half the last size;
    ``x * cos + Concat(u[h:], -u[:h]) -> Rotary<gradient=1>(x, cos, sin)``   with u = x * sin.
    Of 16-bit types the products are rounded; x may have been cast from one."""

    roots = ("Add",)
    reads = ("Mul", "Cast", "Concat")

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        """What to replace."""
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

        def build(op: Any) -> ir.Value:
            result = op.call("Rotary", x, cos, sin, **how)
            result.type = made.type
            return result

        return Match([made], build)


def _is_read_more(value: ir.Value, uses: int) -> bool:
    return value.is_graph_output() or len(value.uses()) > uses
