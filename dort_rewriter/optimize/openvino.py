"""Nodes that OpenVINO computes as torch does, in the place of those that let NaN go.

Its kernels for processors take a number for a NaN in Relu, Clip, Max and Min, infinity in Exp, a
NaN for larger than any number, 0.0 for the negation of 0.0, and leave a row of Softmax numbers
beside a NaN; a layer norm with its moments is refused by some releases. Seen with
``onnxruntime-ep-openvino`` 1.8.1 and ``onnxruntime-openvino`` 1.24.1.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import onnx_ir as ir

from dort_rewriter.graph.writer import Writer
from dort_rewriter.optimize.patterns.base import Emitter
from dort_rewriter.optimize.view import take_place

__all__ = ["KEEPING", "keep_special_numbers"]

_MARK = "special numbers"

_Write = Callable[[Writer, ir.Node], ir.Value | tuple[ir.Value, ...] | None]


def _inputs(node: ir.Node) -> list[ir.Value]:
    return [x for x in node.inputs if x is not None]


def _relu(op: Writer, node: ir.Node) -> ir.Value:
    (x,) = _inputs(node)
    result: ir.Value = op.Where(op.Less(x, 0), 0, x)
    return result


def _itself(op: Writer, node: ir.Node) -> ir.Value:
    """A NaN stays what it is."""
    x, *_ = _inputs(node)
    computed = op.call(node.op_type, *node.inputs, **_attributes(node))
    result: ir.Value = op.Where(op.IsNaN(x), x, computed)
    return result


def _largest(op: Writer, node: ir.Node, *, least: bool = False) -> ir.Value:
    def of_two(a: ir.Value, b: ir.Value) -> ir.Value:
        first = op.Less(a, b) if least else op.Less(b, a)
        result: ir.Value = op.Where(op.Or(first, op.IsNaN(a)), a, b)
        return result

    return functools.reduce(of_two, _inputs(node))


def _turned(name: str) -> _Write:
    def write(op: Writer, node: ir.Node) -> ir.Value:
        a, b = _inputs(node)
        result: ir.Value = op.call(name, b, a)
        return result

    return write


def _negation(op: Writer, node: ir.Node) -> ir.Value:
    (x,) = _inputs(node)
    result: ir.Value = op.Mul(x, -1)
    return result


def _to_bool(op: Writer, node: ir.Node) -> ir.Value | None:
    """A NaN is true."""
    (x,) = _inputs(node)
    if node.attributes["to"].as_int() != ir.DataType.BOOL:
        return None
    result: ir.Value = op.Not(op.Equal(x, 0))
    return result


def _of_a_row(op: Writer, node: ir.Node) -> ir.Value:
    """One NaN makes the row it is in NaN."""
    (x,) = _inputs(node)
    given = node.attributes.get("axis")
    axis = -1 if given is None else given.as_int()
    computed = op.call(node.op_type, x, axis=axis)
    total = op.ReduceSum(computed, [axis], keepdims=1)
    result: ir.Value = op.Where(op.IsNaN(total), math.nan, computed)
    return result


def _norm(op: Writer, node: ir.Node) -> tuple[ir.Value, ...] | None:
    """A layer norm with its moments, which some releases refuse."""
    x, scale, *bias = _inputs(node)
    if not any(map(_is_read, node.outputs[1:])) or x.shape is None:
        return None
    given = _attributes(node)
    first = given.get("axis", -1) % len(x.shape)
    axes = list(range(first, len(x.shape)))
    mean = op.ReduceMean(x, axes, keepdims=1)
    apart = op.Sub(x, mean)
    spread = op.Add(
        op.ReduceMean(op.Mul(apart, apart), axes, keepdims=1), given.get("epsilon", 1e-5)
    )
    inverse = op.Reciprocal(op.Sqrt(spread))
    result = op.Mul(op.Mul(apart, inverse), scale)
    for added in bias:
        result = op.Add(result, added)
    return (result, mean, inverse)[: len(node.outputs)]


def _is_read(value: ir.Value) -> bool:
    return bool(value.uses()) or value.is_graph_output()


def _attributes(node: ir.Node) -> dict[str, Any]:
    return {name: given.value for name, given in node.attributes.items()}


KEEPING: Mapping[str, _Write] = {
    "Cast": _to_bool,
    "Clip": _itself,
    "Exp": _itself,
    "Greater": _turned("Less"),
    "GreaterOrEqual": _turned("LessOrEqual"),
    "HardSigmoid": _itself,
    "LayerNormalization": _norm,
    "LogSoftmax": _of_a_row,
    "Max": _largest,
    "Min": functools.partial(_largest, least=True),
    "Neg": _negation,
    "Relu": _relu,
    "Softmax": _of_a_row,
}


def keep_special_numbers(model: ir.Model) -> int:
    """Replace the nodes of float32 that are meant; return how many there were."""
    changed = 0
    opset = model.graph.opset_imports.get("", 18)
    for node in list(model.graph.all_nodes()):
        graph, write = node.graph, KEEPING.get(node.op_type)
        if write is None or node.domain or not isinstance(graph, ir.Graph):
            continue
        x = node.inputs[0]
        if x is None or x.dtype != ir.DataType.FLOAT or node.metadata_props.get("rule") == _MARK:
            continue
        if node.op_type in ("Max", "Min") and len(node.inputs) == 1:  # a copy
            continue
        emitter = Emitter(graph, opset)
        emitter.begin({**node.metadata_props, "rule": _MARK})
        if (result := write(emitter, node)) is None:
            continue
        graph.insert_before(node, emitter.nodes)
        made = result if isinstance(result, tuple) else (result,)
        for old, new in zip(node.outputs, made, strict=True):
            if _is_read(old):
                take_place(old, new)
        graph.remove(node, safe=True)
        changed += 1
    return changed
