"""Products of a value with itself: onnxruntime loses a Transpose that it takes into one.

onnxruntime 1.19 counts who still reads the Transpose (or the Cast behind it), and one product
that reads it twice as two: there is no session, or one whose runs fail.
"""

from __future__ import annotations

import onnx_ir as ir

__all__ = ["separate_operands"]

_PRODUCTS = {("", "MatMul"), ("com.microsoft", "FusedMatMul")}
_TAKEN_IN = frozenset({"Cast", "Div", "Mul", "Transpose"})
"""Operators that onnxruntime moves into a product, or past one that it does."""


def separate_operands(model: ir.Model) -> int:
    """Copy one factor of each product of a value with itself; return how many there were.

    NOTE: a Max of one value is the copy that no optimizer of onnxruntime takes away.
    """
    nodes = list(model.graph.all_nodes())
    if all(n.op_type != "Transpose" for n in nodes):
        return 0
    found = [n for n in nodes if (n.domain, n.op_type) in _PRODUCTS and _is_square(n)]
    for node in found:
        graph, second = node.graph, node.inputs[1]
        assert graph is not None
        assert second is not None
        copy = ir.node("Max", [second], metadata_props=dict(node.metadata_props))
        copy.outputs[0].type, copy.outputs[0].shape = second.type, second.shape
        graph.insert_before(node, copy)
        node.replace_input_with(1, copy.outputs[0])
    return len(found)


def _is_square(node: ir.Node) -> bool:
    first, second = node.inputs[:2]
    return bool(_lineage(first) & _lineage(second))


def _lineage(value: ir.Value | None) -> set[ir.Value]:
    """A factor, and what it is a transposed, scaled or cast form of."""
    found: set[ir.Value] = set()
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if value is None or value in found or value.const_value is not None:
            continue
        found.add(value)
        producer = value.producer()
        if producer is not None and not producer.domain and producer.op_type in _TAKEN_IN:
            waiting.extend(producer.inputs)
    return found
