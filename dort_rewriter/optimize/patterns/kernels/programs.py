"""Programs of the operator ``Elementwise``: several nodes as instructions of one kernel.

A program computes in float32 (or float64) whatever 16-bit types it reads and writes. Each number
that stands for a 16-bit tensor is rounded to its type where others read it, so that a program has
the bits of its nodes, which are those of eager mode: models are compared with it, and float32
between the nodes, as Inductor has it, is further away. A rounding takes as long as a sum.

NOTE: a test compares the table of operators with ``kernels/cpp/operations.h``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from dort_rewriter.kernels.operators import OWN_DOMAIN
from dort_rewriter.optimize.view import GraphView

OPERATIONS: Mapping[str, int] = {
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Max", "Min"), 2),
    **dict.fromkeys(("Neg", "Abs", "Sqrt", "Reciprocal", "Relu", "Sigmoid", "Exp"), 1),
    **dict.fromkeys(("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"), 2),
    "Where": 3,
    **dict.fromkeys(("Erf", "Tanh", "Log", "Not"), 1),
    "Pow": 2,
    **dict.fromkeys(("ToFloat16", "ToBfloat16", "Gelu"), 1),
}
"""What the kernel computes, in the order of its numbers, and of how many operands."""
_CODES: Mapping[str, int] = {name: code for code, name in enumerate(OPERATIONS)}
_COMPARISONS = frozenset({"Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"})
_CONNECTIVES = {"And": "Mul", "Or": "Max", "Not": "Not"}
"""What is computed with truth values, which are 1 and 0 to a program."""
_OPERANDS = {**OPERATIONS, "Cast": 1, "Clip": 3}
"""A Cast is one too: truth values are read as numbers, and 16-bit numbers as float32. A Clip is
two."""
_EXACT = frozenset({"Max", "Min", "Neg", "Abs", "Relu", "Where", "Clip"})
"""Of operands that are rounded, so are the results."""
_CONDITION = 12
"""Nodes of the condition of a Where that are computed with it, and what they may read: a Where
alone stays within the limits of a group, and a mask made of many is computed once."""
_ROUNDINGS = {ir.DataType.FLOAT16: "ToFloat16", ir.DataType.BFLOAT16: "ToBfloat16"}
_TYPES = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE, *_ROUNDINGS})


@dataclass(frozen=True)
class Program:
    """What a node of ``Elementwise`` needs."""

    code: list[int]
    """Five numbers an instruction: operator, register, three operands (input i is -1 - i)."""
    results: list[int]
    """The register of each result."""
    inputs: list[ir.Value]


def is_instruction(node: ir.Node) -> bool:
    """Whether a node can be part of a program: one of its operators, on one type and masks,
    or a Cast between what is computed alike."""
    if _OPERANDS.get(node.op_type) != len(node.inputs) or len(node.outputs) != 1:
        return False
    if node.domain and (node.domain, node.op_type) != ("com.microsoft", "Gelu"):
        return False
    dtype = node.outputs[0].dtype
    if dtype not in _TYPES or None in node.inputs or "approximate" in node.attributes:
        return False
    read = operands(node)
    if any(v.shape is None for v in read):
        return False
    if node.op_type == "Pow" and any(len(v.shape or ()) for v in read):
        return False  # of numbers alone: others have kernels that are faster
    numbers = [v for v in read if v.dtype != ir.DataType.BOOL]
    if node.op_type == "Cast":
        kind = computed_in(node.outputs[0])
        return all(v.dtype in _TYPES and computed_in(v) == kind for v in numbers)
    return bool(numbers) and all(v.dtype == dtype for v in numbers)


def computed_in(value: ir.Value) -> ir.DataType | None:
    """The type in which a number is computed."""
    return ir.DataType.FLOAT if value.dtype in _ROUNDINGS else value.dtype


def is_narrow(node: ir.Node) -> bool:
    """Whether a node is slow alone: onnxruntime casts 16-bit numbers there and back, and
    takes twice as long as we to round to bfloat16. To read bfloat16 takes as long, but programs of
    gradients become lists."""
    dtype = node.outputs[0].dtype
    if node.op_type == "Cast":
        return {dtype, operands(node)[0].dtype} == {ir.DataType.BFLOAT16, ir.DataType.FLOAT}
    return dtype in _ROUNDINGS


def widens(node: ir.Node) -> bool:
    """Whether a node reads 16-bit numbers as float32, which most kernels of ours do too."""
    return node.op_type == "Cast" and node.outputs[0].dtype == ir.DataType.FLOAT


def has_kernel(value: ir.Value, graph: GraphView) -> bool:
    """Whether programs compute such a value where the model runs."""
    program: dict[str, Any] = {"program": [0, 0, -1, -1, 0], "results": [0]}
    return graph.runs("Elementwise", [value], outputs=[value], domain=OWN_DOMAIN, **program)


def operands(node: ir.Node) -> list[ir.Value]:
    """What a node computes with; a Where may compare by itself."""
    inputs = [v for v in node.inputs if v is not None]
    if node.op_type != "Where":
        return inputs
    return [*_condition_of(node).leaves, *inputs[1:]]


def conditions(where: ir.Node) -> list[ir.Node]:
    """The nodes that a Where computes its condition in the place of, readers first."""
    return _condition_of(where).nodes[::-1]


@dataclass(frozen=True)
class _Condition:
    """Comparisons of numbers, connected, as part of a Where."""

    leaves: list[ir.Value]
    """What it is computed from."""
    nodes: list[ir.Node]
    """In an order in which they can run."""


def _condition_of(where: ir.Node) -> _Condition:
    """What the condition of a Where is computed from: itself, unless that is comparisons
    of numbers of its type, not too many of them."""
    value, dtype = where.inputs[0], where.outputs[0].dtype
    assert value is not None
    itself = _Condition([value], [])
    leaves: dict[ir.Value, None] = {}
    nodes: dict[ir.Node, None] = {}
    waiting = [(value, False)]
    while waiting:
        found, is_ready = waiting.pop()
        node = found.producer()
        read = None if node is None else _compared(node, dtype)
        if node is None or read is None:
            leaves[found] = None
        elif is_ready or node in nodes:
            nodes[node] = None
        else:
            waiting += [(found, True), *((v, False) for v in reversed(read))]
        if max(len(leaves), len(nodes), len(waiting) // 3) > _CONDITION:
            return itself
    is_fed = any(v.dtype != ir.DataType.BOOL for v in leaves)
    return _Condition([*leaves], [*nodes]) if is_fed else itself


def _compared(node: ir.Node, dtype: ir.DataType | None) -> list[ir.Value] | None:
    """What a node compares, or connects, if it is part of a condition."""
    inputs = [v for v in node.inputs if v is not None]
    if node.domain or node.op_type not in _COMPARISONS | _CONNECTIVES.keys():
        return None
    numbers = node.op_type in _COMPARISONS
    return None if numbers and any(v.dtype != dtype for v in inputs) else inputs


class _Writer:
    """Instructions, and which registers hold what is still needed."""

    def __init__(self, reads: dict[ir.Value, int]) -> None:
        self.code: list[int] = []
        self.inputs: dict[ir.Value, int] = {}
        self.places: dict[ir.Value, int] = {}
        """Where the results of nodes are: in registers, or in inputs that were cast."""
        self.free: list[int] = []
        self.used = 0
        self.reads = reads
        self.left: dict[int, int] = {}
        """How often each register is still read."""

    def operand(self, value: ir.Value) -> int:
        if (place := self.places.get(value)) is not None:
            return place
        return -1 - self.inputs.setdefault(value, len(self.inputs))

    def take(self) -> int:
        if self.free:
            return self.free.pop()
        self.used += 1
        return self.used - 1

    def put(self, value: ir.Value, place: int) -> None:
        """Note where a result is; others may be there too."""
        self.places[value] = place
        if place >= 0:
            self.left[place] = self.left.get(place, 0) + self.reads.get(value, 0)

    def release(self, values: Sequence[ir.Value]) -> None:
        for value in values:
            place = self.places.get(value, -1)
            if place >= 0:
                self.left[place] -= 1
                if not self.left[place]:
                    self.free.append(place)

    def write(self, operator: str, register: int, read: Sequence[int]) -> None:
        padded = [*read, *[0] * (3 - len(read))]
        self.code += [_CODES[operator], register, *padded]

    def copy(self, place: int) -> int:
        """A register with the numbers of an input: each is the larger of itself and itself."""
        if place >= 0:
            return place
        register = self.take()
        self.write("Max", register, [place, place])
        self.left[register] = 1
        return register


def write_program(members: Sequence[ir.Node], results: Sequence[ir.Value]) -> Program:
    """The program of nodes in the order they are to run; results are kept to the end."""
    reads: dict[ir.Value, int] = {}
    inside = [v for node in members for v in operands(node)]
    for value in (*inside, *results):
        reads[value] = reads.get(value, 0) + 1
    writer, read_on = _Writer(reads), set(inside)
    for node in members:
        value = node.outputs[0]
        rounding = _ROUNDINGS.get(value.dtype) if value in read_on else None  # type: ignore[arg-type]
        if node.op_type == "Cast":
            place = _write_cast(writer, node, rounding)
        else:
            place = _write_node(writer, node)
            if rounding is not None and node.op_type not in _EXACT:
                writer.write(rounding, place, [place])
        writer.put(value, place)
    kept = [writer.copy(writer.operand(v)) for v in results]
    return Program(writer.code, kept, list(writer.inputs))


def _write_cast(writer: _Writer, node: ir.Node, rounding: str | None) -> int:
    """Write a rounding that others read; other numbers are where they were."""
    (value,) = operands(node)
    place = writer.operand(value)
    if rounding is None or value.dtype in (node.outputs[0].dtype, ir.DataType.BOOL):
        if place >= 0:  # the new name of the register holds it
            writer.left[place] -= 1
        return place
    writer.release([value])
    register = writer.take()
    writer.write(rounding, register, [place])
    return register


def _write_node(writer: _Writer, node: ir.Node) -> int:
    if node.op_type == "Where":
        return _write_where(writer, node)
    if node.op_type == "Clip":
        return _write_clip(writer, node)
    read = operands(node)
    found = [writer.operand(v) for v in read]
    writer.release(read)
    register = writer.take()
    writer.write(node.op_type, register, found)
    return register


def _write_where(writer: _Writer, node: ir.Node) -> int:
    """Write a condition and a choice, and return the register of the result.

    NOTE: the condition gets registers while those of what is chosen from are taken.
    """
    condition, *chosen = (v for v in node.inputs if v is not None)
    computed: dict[ir.Value, int] = {}
    for inner in _condition_of(node).nodes:
        read = [v for v in inner.inputs if v is not None]
        found = [computed[v] if v in computed else writer.operand(v) for v in read]
        register = computed[inner.outputs[0]] = writer.take()
        writer.write(_CONNECTIVES.get(inner.op_type, inner.op_type), register, found)
    test = computed[condition] if condition in computed else writer.operand(condition)
    found = [writer.operand(v) for v in chosen]
    writer.release(operands(node))
    writer.free.extend(reversed(computed.values()))
    register = writer.take()
    writer.write("Where", register, [test, *found])
    return register


def _write_clip(writer: _Writer, node: ir.Node) -> int:
    """Write the bounds that are finite, the second one after the register is written."""
    x, low, high = operands(node)
    ends = (("Max", low, -math.inf), ("Min", high, math.inf))
    bounds = [(operator, v) for operator, v, end in ends if not _is_number(v, end)]
    found = [writer.operand(v) for v in (x, *(v for _, v in bounds))]
    register = writer.take()
    writer.release([x, low, high])
    place = found[0]
    for (operator, _), bound in zip(bounds, found[1:], strict=True):
        writer.write(operator, register, [bound, place])  # the second one of equal zeros
        place = register
    if not bounds:
        writer.write("Max", register, [place, place])
    return register


def _is_number(value: ir.Value, number: float) -> bool:
    known = value.const_value
    return known is not None and known.size == 1 and float(known.numpy().ravel()[0]) == number
