"""Other nodes in the place of those that the kernels at hand compute wrongly.

onnxruntime 1.19 gives 1 for the error function of NaN, NaN for the square root of infinity and
0.0 for that of -0.0, 0.0 for -0.0 rounded up or down, 0 for the Relu of a single NaN of float16,
a number for the Min and the Max of a NaN of float16 that is repeated along the last axis, and NaN
for the PRelu of infinity. Up to 1.32, Tanh and Sigmoid of float32 are above 1 at some numbers
(8.34, 17.84), Sigmoid is 0 below -18, and Where, which adds zeros to what it chooses, makes 0.0 of
-0.0: ONNX has no other one, but there is our kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir

from dort_rewriter.graph.signs import signed_one
from dort_rewriter.graph.writer import Writer
from dort_rewriter.kernels.operators import OWN_DOMAIN, OWN_MOST_AXES
from dort_rewriter.optimize.emitter import Emitter
from dort_rewriter.optimize.patterns.kernels.programs import is_instruction, write_program
from dort_rewriter.optimize.replacing import take_place

__all__ = ["SUBSTITUTED", "IsWrong", "substitute"]

IsWrong = Callable[[str, ir.DataType], bool]
"""Whether the kernel of an operator is wrong for a type."""

_MARK = "substitute"


def _erf(op: Writer, inputs: Sequence[ir.Value]) -> ir.Value:
    (x,) = inputs
    result: ir.Value = op.Where(op.IsNaN(x), x, op.Erf(x))
    return result


def _relu(op: Writer, inputs: Sequence[ir.Value]) -> ir.Value:
    (x,) = inputs
    result: ir.Value = op.Where(op.Less(x, 0), 0, x)
    return result


def _sqrt(op: Writer, inputs: Sequence[ir.Value]) -> ir.Value:
    """In float64, of which the rounded root is the root rounded once."""
    (x,) = inputs
    assert x.dtype is not None
    return op.cast(op.Sqrt(op.cast(x, ir.DataType.DOUBLE)), x.dtype)


def _prelu(op: Writer, inputs: Sequence[ir.Value]) -> ir.Value:
    x, slope = inputs
    result: ir.Value = op.Where(op.Less(x, 0), op.Mul(x, slope), x)
    return result


def _sigmoid(op: Writer, inputs: Sequence[ir.Value]) -> ir.Value:
    (x,) = inputs
    result: ir.Value = op.Div(1, op.Add(op.Exp(op.Neg(x)), 1))
    return result


def _tanh(op: Writer, inputs: Sequence[ir.Value]) -> ir.Value:
    (x,) = inputs
    result: ir.Value = op.Clip(op.Tanh(x), -1, 1)
    return result


def _with_sign(name: str) -> Callable[[Writer, Sequence[ir.Value]], ir.Value]:
    def computed(op: Writer, inputs: Sequence[ir.Value]) -> ir.Value:
        """A rounded number, which has the sign of the number, or is zero."""
        (x,) = inputs
        result: ir.Value = op.Mul(op.Abs(op.call(name, x)), signed_one(op, x))
        return result

    return computed


def _in_float(name: str) -> Callable[[Writer, Sequence[ir.Value]], ir.Value]:
    def computed(op: Writer, inputs: Sequence[ir.Value]) -> ir.Value:
        dtype = inputs[0].dtype
        assert dtype is not None
        wide = [op.cast(x, ir.DataType.FLOAT) for x in inputs]
        return op.cast(op.call(name, *wide), dtype)

    return computed


SUBSTITUTED: dict[str, Callable[[Writer, Sequence[ir.Value]], ir.Value]] = {
    "Ceil": _with_sign("Ceil"),
    "Erf": _erf,
    "Floor": _with_sign("Floor"),
    "Max": _in_float("Max"),
    "Min": _in_float("Min"),
    "PRelu": _prelu,
    "Relu": _relu,
    "Sigmoid": _sigmoid,
    "Sqrt": _sqrt,
    "Tanh": _tanh,
}

_KNOWN = frozenset({*SUBSTITUTED, "Where"})


def substitute(model: ir.Model, is_wrong: IsWrong, *, own_kernels: bool) -> int:
    """Replace the nodes with a wrong kernel, by kernels of ours if they may be used; return how
    many there were."""
    found = [n for n in model.graph.all_nodes() if _is_meant(n, is_wrong)]
    changed = 0
    for node in found:
        if own_kernels and _by_ours(node):
            model.graph.opset_imports.setdefault(OWN_DOMAIN, 1)
        elif node.op_type in SUBSTITUTED:
            _by_standard(node, model.graph.opset_imports.get("", 18))
        else:
            continue
        changed += 1
    return changed


def _is_meant(node: ir.Node, is_wrong: IsWrong) -> bool:
    if node.domain or node.op_type not in _KNOWN or node.metadata_props.get("rule") == _MARK:
        return False
    if node.op_type in ("Max", "Min") and len(node.inputs) == 1:  # a copy
        return False
    dtype = node.outputs[0].dtype
    return dtype is not None and is_wrong(node.op_type, dtype)


def _by_ours(node: ir.Node) -> bool:
    value = node.outputs[0]
    if value.dtype is None or value.shape is None or len(value.shape) > OWN_MOST_AXES:
        return False
    if not is_instruction(node):
        return False
    program = write_program([node], [value])
    ours = ir.node(
        "Elementwise",
        program.inputs,
        {"program": program.code, "results": program.results},
        domain=OWN_DOMAIN,
        metadata_props={**node.metadata_props, "rule": _MARK},
    )
    _put(node, [ours], ours.outputs[0])
    return True


def _by_standard(node: ir.Node, opset: int) -> None:
    graph, inputs = node.graph, [x for x in node.inputs if x is not None]
    assert isinstance(graph, ir.Graph)
    emitter = Emitter(graph, opset)
    emitter.begin({**node.metadata_props, "rule": _MARK})
    result = SUBSTITUTED[node.op_type](emitter, inputs)
    _put(node, emitter.nodes, result)


def _put(node: ir.Node, nodes: list[ir.Node], result: ir.Value) -> None:
    graph = node.graph
    assert graph is not None
    graph.insert_before(node, nodes)
    take_place(node.outputs[0], result)
    graph.remove(node, safe=True)
