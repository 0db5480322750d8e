"""Gelu, ``x * (1 + gate) / 2``: the gate is an error function, or a hyperbolic tangent."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from dort_rewriter.optimize.patterns.base import Refusal
from dort_rewriter.optimize.patterns.recognize.operands import factors, scaled
from dort_rewriter.optimize.view import GraphView

_SLOPE = {"Erf": math.sqrt(0.5), "Tanh": math.sqrt(2 / math.pi)}
_CUBE = 0.044715
_TOLERANCE = 1e-3
"""Between a constant and what it stands for: half has eleven bits."""


@dataclass(frozen=True)
class Gelu:
    """A Gelu of x."""

    x: ir.Value
    result: ir.Value
    approximate: str
    """``none`` or ``tanh``, as ONNX has it."""


def find_gelu(gate: ir.Node, graph: GraphView) -> Gelu | Refusal | None:
    """Whether an Erf or a Tanh is the gate of a Gelu; refuse one that others read."""
    argument = scaled(graph.producer(gate.inputs[0]), graph)
    if argument is None or not _is_close(argument[1], _SLOPE[gate.op_type]):
        return None
    x = argument[0] if gate.op_type == "Erf" else _without_cube(argument[0], graph)
    if x is None:
        return None
    result = _product_with(gate, x, graph)
    if not isinstance(result, ir.Value):
        return result
    return Gelu(x, result, "none" if gate.op_type == "Erf" else "tanh")


def _is_close(number: float, wanted: float) -> bool:
    return math.isclose(number, wanted, rel_tol=_TOLERANCE)


def _without_cube(value: ir.Value, graph: GraphView) -> ir.Value | None:
    """x where a value is ``x + 0.044715 * x * x * x``."""
    total = graph.producer(value, "Add")
    for x, cube in factors(total):
        scale, count = 1.0, 0
        for factor in _leaves(cube, x, graph):
            if factor is x:
                count += 1
            elif (number := graph.scalar(factor)) is not None:
                scale *= float(number)
            else:
                break
        else:
            if count == 3 and _is_close(scale, _CUBE):
                return x
    return None


def _leaves(value: ir.Value, x: ir.Value, graph: GraphView, depth: int = 3) -> Iterator[ir.Value]:
    """The factors of a product, none of them looked into if it is x."""
    node = graph.producer(value, "Mul", "Pow") if value is not x and depth else None
    if node is None or None in node.inputs:
        yield value
        return
    a, b = node.inputs
    assert a is not None
    assert b is not None
    if node.op_type == "Mul":
        yield from _leaves(a, x, graph, depth - 1)
        yield from _leaves(b, x, graph, depth - 1)
    elif a is x and graph.scalar(b) in (2, 3):
        yield from [x] * int(graph.scalar(b))
    else:
        yield value


def _product_with(gate: ir.Node, x: ir.Value, graph: GraphView) -> ir.Value | Refusal | None:
    """``x * (gate + 1) / 2``, the one thing that the gate is read for."""
    value, scale, count, is_shifted = gate.outputs[0], 1.0, 0, False
    while not (is_shifted and count == 1 and _is_close(scale, 0.5)):
        if not (readers := graph.consumers(value)):
            return None
        if not graph.used_once(value):
            return Refusal("others read what is inside", value.name)
        (reader,) = readers
        if reader.domain or reader.op_type != ("Mul" if is_shifted else "Add"):
            return None
        other = next(b for a, b in factors(reader) if a is value)
        if not is_shifted:
            if graph.scalar(other) != 1:
                return None
            is_shifted = True
        elif (part := _part(other, x, graph)) is not None:
            scale, count = scale * part[0], count + part[1]
        else:
            return None
        value = reader.outputs[0]
    return value


def _part(value: ir.Value, x: ir.Value, graph: GraphView) -> tuple[float, int] | None:
    """The scale, and how many times x, where a value is made of nothing else."""
    if value is x:
        return 1.0, 1
    if (number := graph.scalar(value)) is not None:
        return float(number), 0
    found = scaled(graph.producer(value), graph)
    return (found[1], 1) if found is not None and found[0] is x else None
