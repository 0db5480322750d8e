"""Inputs of torch's kernels: they read tensors as they lie, in any order of the axes."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from dort_rewriter.graph.schemas import OWN_DOMAIN, TORCH_KERNELS
from dort_rewriter.optimize.patterns.base import Match, Refusal, Rule
from dort_rewriter.optimize.view import GraphView

__all__ = ["TransposeTorch"]


class TransposeTorch(Rule):
    """``mm(Transpose(x, perm), y) -> mm<perm0=perm>(x, y)``   for each input of torch's
    kernels."""

    roots = tuple(f"{OWN_DOMAIN}::{name}" for name in sorted(TORCH_KERNELS))
    lowers = "kernels of torch that read a Transpose"

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        """What to replace."""
        inputs = list(node.inputs)
        attributes: dict[str, Any] = {k: a.value for k, a in node.attributes.items()}
        for i, value in enumerate(node.inputs):
            before = graph.producer(value, "Transpose")
            if before is None or (rank := graph.rank(before.inputs[0])) is None:
                continue
            first = list(graph.attribute(before, "perm", range(rank - 1, -1, -1)))
            then = attributes.get(f"perm{i}", range(rank))
            inputs[i], perm = before.inputs[0], [first[d] for d in then]
            attributes[f"perm{i}"] = perm if perm != sorted(perm) else None
        if inputs == list(node.inputs):
            return None

        types = [result.type for result in node.outputs]

        def build(op: Any) -> Any:
            count = len(types)
            made = op.call(node.op_type, *inputs, domain=OWN_DOMAIN, outputs=count, **attributes)
            for result, known in zip(made if count > 1 else (made,), types, strict=True):
                result.type = known
            return made

        return Match(list(node.outputs), build)
