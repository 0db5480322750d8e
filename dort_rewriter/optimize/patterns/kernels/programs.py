"""Programs of the operator ``Elementwise``: several nodes as instructions of one kernel.

NOTE: a test compares the table of operators with ``runtime/kernels_cpp/elementwise.h``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

__all__ = [
    "OPERATIONS",
    "Program",
    "conditions",
    "is_instruction",
    "mask",
    "operands",
    "write_program",
]

OPERATIONS: Mapping[str, int] = {
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Max", "Min"), 2),
    **dict.fromkeys(("Neg", "Abs", "Sqrt", "Reciprocal", "Relu", "Sigmoid", "Exp"), 1),
    **dict.fromkeys(("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"), 2),
    "Where": 3,
    **dict.fromkeys(("Erf", "Tanh", "Log", "Not"), 1),
    "Pow": 2,
}
"""What the kernel computes, in the order of its numbers, and of how many operands."""
_CODES: Mapping[str, int] = {name: code for code, name in enumerate(OPERATIONS)}
_COMPARISONS = frozenset({"Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"})
_CONNECTIVES = {"And": "Mul", "Or": "Max", "Not": "Not"}
"""What is computed with truth values, which are 1 and 0 to a program."""
_OPERANDS = {**OPERATIONS, "Cast": 1}
"""A Cast of a mask is one too: truth values are read as numbers."""
_CONDITION = 12
"""Nodes of the condition of a Where that are computed with it, and what they may read: a Where
alone stays within the limits of a group, and a mask made of many is computed once."""
_TYPES = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16})


@dataclass(frozen=True)
class Program:
    """What a node of ``Elementwise`` needs."""

    code: list[int]
    """Five numbers an instruction: operator, register, three operands (input i is -1 - i)."""
    results: list[int]
    """The register of each result."""
    inputs: list[ir.Value]


def is_instruction(node: ir.Node) -> bool:
    """Tell whether a node can be part of a program: one of its operators, on one type and at most
    one mask."""
    if node.domain or _OPERANDS.get(node.op_type) != len(node.inputs) or len(node.outputs) != 1:
        return False
    dtype = node.outputs[0].dtype
    if dtype not in _TYPES or None in node.inputs:
        return False
    read = operands(node)
    if any(v.shape is None for v in read):
        return False
    if node.op_type == "Pow" and any(len(v.shape or ()) for v in read):
        return False  # of numbers alone: others have kernels that are faster
    numbers = [v for v in read if v.dtype != ir.DataType.BOOL]
    if node.op_type == "Cast":
        return not numbers
    return bool(numbers) and all(v.dtype == dtype for v in numbers)


def operands(node: ir.Node) -> list[ir.Value]:
    """What a node computes with; a Where may compare by itself."""
    inputs = [v for v in node.inputs if v is not None]
    if node.op_type != "Where":
        return inputs
    return [*_condition_of(node).leaves, *inputs[1:]]


def mask(node: ir.Node) -> ir.Value | None:
    """The truth values that a node reads, if any."""
    return next((v for v in operands(node) if v.dtype == ir.DataType.BOOL), None)


def conditions(where: ir.Node) -> list[ir.Node]:
    """The nodes that a Where computes its condition in the place of, readers first."""
    return _condition_of(where).nodes[::-1]


@dataclass(frozen=True)
class _Condition:
    """Comparisons of numbers, connected, as part of a Where."""

    leaves: list[ir.Value]
    """What it is computed from: at most one mask among them."""
    nodes: list[ir.Node]
    """In an order in which they can run."""


def _condition_of(where: ir.Node) -> _Condition:
    """What the condition of a Where is computed from: itself, unless that is comparisons
    of numbers of its type, not too many of them, and at most one mask."""
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
    masks = sum(v.dtype == ir.DataType.BOOL for v in leaves)
    return _Condition([*leaves], [*nodes]) if masks <= 1 and len(leaves) > masks else itself


def _compared(node: ir.Node, dtype: ir.DataType | None) -> list[ir.Value] | None:
    """What a node compares, or connects, if it is part of a condition."""
    inputs = [v for v in node.inputs if v is not None]
    if node.domain or node.op_type not in _COMPARISONS | _CONNECTIVES.keys():
        return None
    numbers = node.op_type in _COMPARISONS
    return None if numbers and any(v.dtype != dtype for v in inputs) else inputs


class _Writer:
    """Instructions, and which registers hold what is still needed."""

    def __init__(self, reads_left: dict[ir.Value, int]) -> None:
        self.code: list[int] = []
        self.inputs: dict[ir.Value, int] = {}
        self.registers: dict[ir.Value, int] = {}
        self.free: list[int] = []
        self.used = 0
        self.reads_left = reads_left

    def operand(self, value: ir.Value) -> int:
        if (register := self.registers.get(value)) is not None:
            return register
        return -1 - self.inputs.setdefault(value, len(self.inputs))

    def take(self) -> int:
        if self.free:
            return self.free.pop()
        self.used += 1
        return self.used - 1

    def release(self, values: Sequence[ir.Value]) -> None:
        for value in values:
            if value in self.registers:
                self.reads_left[value] -= 1
                if not self.reads_left[value]:
                    self.free.append(self.registers[value])

    def write(self, operator: str, register: int, read: Sequence[int]) -> None:
        padded = [*read, *[0] * (3 - len(read))]
        self.code += [_CODES[operator], register, *padded]


def write_program(members: Sequence[ir.Node], results: Sequence[ir.Value]) -> Program:
    """The program of nodes in the order they are to run; results are kept to the end."""
    reads: dict[ir.Value, int] = {}
    for value in (*(v for node in members for v in operands(node)), *results):
        reads[value] = reads.get(value, 0) + 1
    writer = _Writer(reads)
    for first in dict.fromkeys(m for node in members if (m := mask(node)) is not None):
        writer.operand(first)
    for node in members:
        read = operands(node)
        if node.op_type == "Where":
            register = _write_where(writer, node)
        else:
            found = [writer.operand(v) for v in read]
            writer.release(read)
            register = writer.take()
            # a mask is read as numbers: their absolute value is a copy
            operator = "Abs" if node.op_type == "Cast" else node.op_type
            writer.write(operator, register, found)
        writer.registers[node.outputs[0]] = register
    return Program(writer.code, [writer.registers[v] for v in results], list(writer.inputs))


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
