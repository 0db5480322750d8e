"""Transposes that kernels do while they read or write, instead of one more copy.

Torch's kernels read tensors as they lie, in any order of the axes. Ours transpose while they
convert. NOTE: only those that were measured to be faster than the nodes they stand for:
onnxruntime's own transposes are fast where one axis moves, and where there are a few numbers in a
row, ours are not.
"""

from __future__ import annotations

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
from dort_rewriter.optimize.view import GraphView, operator

_TYPES = {
    (ir.DataType.FLOAT16, ir.DataType.FLOAT): "TransposeToFloat",
    (ir.DataType.FLOAT, ir.DataType.FLOAT16): "TransposeToFloat16",
    (ir.DataType.BFLOAT16, ir.DataType.FLOAT): "TransposeToFloat",
    (ir.DataType.FLOAT, ir.DataType.BFLOAT16): "TransposeToBfloat16",
}
_ANY_ORDER = frozenset(own_roots(TORCH_KERNELS))
"""Kernels of torch, which read tensors in any order of the axes."""
_ROW, _BLOCK = 32, 8
"""How many numbers have to be neighbours, in rows that are copied and on both axes of a block."""


class TransposeCast(Rule):
    """``Cast(Transpose(x, perm)) -> TransposeToFloat<perm>(x)``   from float16 or bfloat16 to
    float32; to ``TransposeToFloat16`` or ``TransposeToBfloat16`` the other way; and
    ``Transpose(Cast(x), perm)``."""

    roots = ("Cast", "Transpose")
    reads = ("Cast", "Transpose")

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        other = "Transpose" if node.op_type == "Cast" else "Cast"
        between = node.inputs[0]
        before = graph.producer(between, other)
        if before is None or between is None or not graph.used_once(between):
            return None
        x, y = before.inputs[0], node.outputs[0]
        if x is None or x.dtype is None or y.dtype is None:
            return None
        name = _TYPES.get((x.dtype, y.dtype))
        perm = graph.order(node if other == "Cast" else before)
        dims = graph.dims(x)
        if name is None or perm is None or dims is None:
            return None
        if other == "Cast" and _is_read_in_any_order(y, graph):
            return None  # the rounded numbers are read as they lie
        if not _is_fast(perm, dims):
            return Refusal("onnxruntime's transpose is faster", (perm, dims))
        if not graph.runs(name, [x], outputs=[y], domain=OWN_DOMAIN, perm=perm):
            return Refusal("no kernel", (x.dtype, y.dtype))
        return Match([y], lambda op: op.call(name, x, domain=OWN_DOMAIN, perm=perm))


def _is_read_in_any_order(value: ir.Value, graph: GraphView) -> bool:
    readers = graph.consumers(value)
    if not readers or value.is_graph_output():
        return False
    return all(operator(n) in _ANY_ORDER for n in readers)


def _is_fast(perm: list[int], dims: tuple[int | ir.SymbolicDim, ...]) -> bool:
    """Whether rows or blocks are long; a size known at run time is taken to be."""
    sizes = [d if isinstance(d, int) else _ROW for d in dims]
    if not perm or sorted(perm) == perm:
        return False
    if perm[-1] == len(perm) - 1:
        return sizes[-1] >= _ROW
    return sizes[-1] >= _BLOCK and sizes[perm[-1]] >= _BLOCK


class TransposeTorch(Rule):
    """``mm(Transpose(x, perm), y) -> mm<perm0=perm>(x, y)``   for each input of torch's
    kernels, of attention where the last axis stays the last."""

    roots = own_roots(TORCH_KERNELS | {PADDING_LEFT_OUT})
    lowers = "kernels of torch that read a Transpose"

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        inputs, orders = list(node.inputs), dict[str, Any]()
        for i, value in enumerate(node.inputs):
            before = graph.producer(value, "Transpose")
            if node.op_type == PADDING_LEFT_OUT and i == 0:
                continue  # what was made, which may become the result
            if before is None or (first := graph.order(before)) is None:
                continue
            perm = [first[d] for d in graph.attribute(node, f"perm{i}", range(len(first)))]
            if node.op_type in TORCH_ATTENTION and perm[-1] != len(first) - 1:
                continue
            inputs[i] = before.inputs[0]
            orders[f"perm{i}"] = perm if perm != sorted(perm) else None
        if not orders:
            return None
        made = node.outputs
        return Match(made, lambda op: op.again(node, *inputs, outputs=len(made), **orders))


class TorchTranspose(Rule):
    """``Transpose(attention(...), perm) -> attention<order0=perm>(...)``   for each result that
    only Transposes of one order read; of convolutions too."""

    roots = own_roots(TORCH_ATTENTION | TORCH_CONVOLUTIONS)
    lowers = "Transposes of results of torch's kernels"

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        added: dict[str, Any] = {}
        replaced: list[list[ir.Value]] = []
        for i, value in enumerate(node.outputs):
            readers = [] if value.is_graph_output() else graph.consumers(value)
            orders = {tuple(_perm(reader, graph)) for reader in readers}
            if len(orders) != 1 or f"order{i}" in node.attributes or orders == {()}:
                replaced.append([value])
                continue
            (added[f"order{i}"],) = map(list, orders)
            replaced.append([reader.outputs[0] for reader in readers])
        if not added:
            return None
        results = [value for values in replaced for value in values]

        def build(op: Any) -> list[ir.Value]:
            made = op.again(node, *node.inputs, outputs=len(replaced), **added)
            each = made if isinstance(made, tuple) else (made,)
            return [m for m, values in zip(each, replaced, strict=True) for _ in values]

        return Match(results, build)


def _perm(node: ir.Node, graph: GraphView) -> list[int]:
    """The order of a Transpose; nothing for another node."""
    if node.op_type != "Transpose" or node.domain:
        return []
    return graph.order(node) or []
