"""Transposes around torch's kernels, which read tensors as they lie, in any order of the axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir

from dort_rewriter.kernels.operators import (
    OWN_DOMAIN,
    PADDING_LEFT_OUT,
    TORCH_ATTENTION,
    TORCH_CONVOLUTIONS,
    TORCH_KERNELS,
    own_roots,
)
from dort_rewriter.optimize.patterns.base import Match, Refusal, Rule
from dort_rewriter.optimize.view import GraphView


class TransposeTorch(Rule):
    """``mm(Transpose(x, perm), y) -> mm<perm0=perm>(x, y)``   for each input of torch's
    kernels, of attention where the last axis stays the last."""

    roots = own_roots(TORCH_KERNELS | {PADDING_LEFT_OUT})
    lowers = "kernels of torch that read a Transpose"

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        inputs = list(node.inputs)
        attributes: dict[str, Any] = {k: a.value for k, a in node.attributes.items()}
        for i, value in enumerate(node.inputs):
            before = graph.producer(value, "Transpose")
            if node.op_type == PADDING_LEFT_OUT and i == 0:
                continue  # what was made, which may become the result
            if before is None or (first := graph.order(before)) is None:
                continue
            perm = [first[d] for d in attributes.get(f"perm{i}", range(len(first)))]
            if node.op_type in TORCH_ATTENTION and perm[-1] != len(first) - 1:
                continue
            inputs[i] = before.inputs[0]
            attributes[f"perm{i}"] = perm if perm != sorted(perm) else None
        if inputs == list(node.inputs):
            return None
        return Match(list(node.outputs), lambda op: _call(op, node, inputs, attributes))


class TorchTranspose(Rule):
    """``Transpose(attention(...), perm) -> attention<order0=perm>(...)``   for each result that
    only Transposes of one order read; of convolutions too."""

    roots = own_roots(TORCH_ATTENTION | TORCH_CONVOLUTIONS)
    lowers = "Transposes of results of torch's kernels"

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        attributes: dict[str, Any] = {k: a.value for k, a in node.attributes.items()}
        replaced: list[list[ir.Value]] = []
        found = False
        for i, value in enumerate(node.outputs):
            readers = [] if value.is_graph_output() else graph.consumers(value)
            orders = {tuple(_perm(reader, graph)) for reader in readers}
            if len(orders) != 1 or f"order{i}" in attributes or orders == {()}:
                replaced.append([value])
                continue
            found = True
            (attributes[f"order{i}"],) = map(list, orders)
            replaced.append([reader.outputs[0] for reader in readers])
        if not found:
            return None
        results = [value for values in replaced for value in values]

        def build(op: Any) -> list[ir.Value]:
            made = _call(op, node, node.inputs, attributes)
            return [m for m, values in zip(made, replaced, strict=True) for _ in values]

        return Match(results, build)


def _perm(node: ir.Node, graph: GraphView) -> list[int]:
    """The order of a Transpose; nothing for another node."""
    if node.op_type != "Transpose" or node.domain:
        return []
    return graph.order(node) or []


def _call(
    op: Any, node: ir.Node, inputs: Sequence[Any], attributes: Mapping[str, Any]
) -> list[ir.Value]:
    """The same node with other inputs and attributes."""
    count = len(node.outputs)
    made = op.call(node.op_type, *inputs, domain=OWN_DOMAIN, outputs=count, **attributes)
    return list(made) if count > 1 else [made]
